// SPDX-License-Identifier: Apache-2.0
// Launch scope: the kernels for few rows, and which of them takes how many blocks.
#pragma once

#include "launch.cuh"
#include "row_per_block.cuh"
#include "rows_in_slices.cuh"
#include "rows_per_block.cuh"
#include "topk_select.cuh"

namespace flashinfer_msa {

// Measured on an H200, H = 4, float32, cold, in microseconds; behind each kernel its best rival.
//
// A row a thread block, S = 1, as warps x items a thread:
//   blocks    128  1x4  1.21  4x1  1.26      2,048  8x8  1.68  4x16  1.91
//             512  2x8  1.37  4x4  1.42      8,192  8x32 2.45  16x16 2.54
template <class Policy>
struct OneRowKernels {
  using Warp = RowPerBlock<Policy, 1, 4>;    // 128
  using Small = RowPerBlock<Policy, 2, 8>;   // 512
  using Medium = RowPerBlock<Policy, 8, 8>;  // 2,048
  using Large = RowPerBlock<Policy, 8, 32>;  // 8,192
  using Long = RowPerBlock<Policy, 8, 32, true>;

  static cudaError_t prepare() { return prepare_kernels<Warp, Small, Medium, Large, Long>(); }

  static cudaError_t launch(const Params& params, cudaStream_t stream) {
    if (params.blocks <= Warp::kChunk) return launch_kernel<Warp>(params, stream);
    if (params.blocks <= Small::kChunk) return launch_kernel<Small>(params, stream);
    if (params.blocks <= Medium::kChunk) return launch_kernel<Medium>(params, stream);
    if (params.blocks <= Large::kChunk) return launch_kernel<Large>(params, stream);
    return launch_kernel<Long>(params, stream);
  }
};

// Rows of adjacent tokens a thread block, where there are so many that sectors of memory read in
// vain show, as rows x warps x items a thread:
//   blocks    S = 64                                 S = 256
//      512    4x8x8   2.40  2x8 above 2.57           8x8x16  3.42  4x8x8    3.76
//    2,048    4x8x32  4.11  8x16x32   4.68           8x16x32 5.88  slices   6.99
//    8,192    4x16x64 8.69  slices   11.90           slices 15.01  8x16x32 in chunks 18.3
// Of 256 blocks or fewer, 2x8 above takes 2.14 at S = 64. A cluster of 8 thread blocks a row group
// took 10.9 to 18.9 at 8,192 x 64.
template <class Policy>
struct SomeRowsKernels {
  static constexpr bool kWide = Policy::kTopK > 32;  // needs more groups a thread
  using Small = RowsPerBlock<Policy, 4, kWide ? 4 : 8, kWide ? 16 : 8>;       // 512
  using SmallMany = RowsPerBlock<Policy, 8, kWide ? 4 : 8, kWide ? 32 : 16>;  // 512
  using Medium = RowsPerBlock<Policy, 4, 8, 32>;                              // 2,048
  using MediumMany = RowsPerBlock<Policy, 8, 16, 32>;                         // 2,048
  using Large = RowsPerBlock<Policy, 4, 16, 64>;                              // 8,192
  using LongMany = RowsInSlices<Policy, Policy::kTopK <= 16 ? 16 : 8>;

  static constexpr int kSome = 128;       // rows from which long ones,
  static constexpr int kSomeSmall = 256;  // and short ones are taken together,
  static constexpr int kMany = 512;       // and from which more of them
  static constexpr int kShort = 256;      // blocks up to which only many rows are

  static bool takes(const Params& p, int64_t rows) {
    if (p.token_stride != 1 || p.tokens < 4 || !has_small_stride(p)) return false;
    if (p.blocks > Small::kChunk) return rows >= kSome;
    if (p.blocks > kShort) return rows >= kSomeSmall;
    return p.blocks > OneRowKernels<Policy>::Warp::kChunk && rows >= kMany;
  }

  static cudaError_t prepare() {
    return prepare_kernels<Small, SmallMany, Medium, MediumMany, Large, LongMany>();
  }

  static cudaError_t launch(const Params& params, int64_t rows, cudaStream_t stream) {
    const bool many = rows >= kMany;
    if (params.blocks <= Small::kChunk) {
      return many ? launch_kernel<SmallMany>(params, stream) : launch_kernel<Small>(params, stream);
    }
    if (params.blocks <= Medium::kChunk) {
      return many ? launch_kernel<MediumMany>(params, stream)
                  : launch_kernel<Medium>(params, stream);
    }
    return many || params.blocks > Large::kChunk ? launch_kernel<LongMany>(params, stream)
                                                 : launch_kernel<Large>(params, stream);
  }
};

template <class Policy>
cudaError_t FewRows<Policy>::prepare() {
  const cudaError_t error = OneRowKernels<Policy>::prepare();
  return error == cudaSuccess ? SomeRowsKernels<Policy>::prepare() : error;
}

template <class Policy>
cudaError_t FewRows<Policy>::launch(const Params& params, cudaStream_t stream) {
  const int64_t rows = int64_t{params.heads} * params.tokens;
  if (SomeRowsKernels<Policy>::takes(params, rows)) {
    return SomeRowsKernels<Policy>::launch(params, rows, stream);
  }
  return OneRowKernels<Policy>::launch(params, stream);
}

}  // namespace flashinfer_msa
