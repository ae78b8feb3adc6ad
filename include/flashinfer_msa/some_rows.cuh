// SPDX-License-Identifier: Apache-2.0
// Launch scope: the kernels for some rows of adjacent tokens, a few of which share a thread block,
// so that no sector of memory is read in vain; and which of them takes how many blocks.
#pragma once

#include <type_traits>

#include "launch.cuh"
#include "row_per_warp.cuh"
#include "rows_by_halves.cuh"
#include "rows_in_slices.cuh"
#include "rows_per_block.cuh"
#include "topk_select.cuh"

namespace flashinfer_msa {

// Measured on an H200, H = 4, float32, cold, in microseconds; behind each kernel its best rival.
//
// Short rows, a warp each, as rows x items a lane; beside them a row a thread block:
//   blocks  S = 4       16          64               256              1,024
//      128  4x4 1.28    4x4 1.32    4x4  1.42 1.71   8x4  1.73 4x4  1.81   8x4  3.27 4x4  3.43
//      256  4x8 1.33    4x8 1.41    4x8  1.53 1.99   8x8  2.23 4x8  2.37   8x8  4.01 4x8  4.59
//      384              4x16 1.57   4x16 1.76 2.27   8x12 2.67 8x16 2.80   8x12 5.33 8x16 6.19
//      512  4x16 1.50   4x16 1.62   4x16 1.85 2.55   8x16 2.92 4x16 3.22   8x16 6.80 4x16 7.43
//           one  1.47   one  1.65
template <class Policy>
struct ShortRowsKernels {
  using UpTo128 = RowPerWarp<Policy, 4, 4>;
  using UpTo256 = RowPerWarp<Policy, 4, 8>;
  using UpTo512 = RowPerWarp<Policy, 4, 16>;
  using ManyUpTo128 = RowPerWarp<Policy, 8, 4>;
  using ManyUpTo256 = RowPerWarp<Policy, 8, 8>;
  using ManyUpTo384 = RowPerWarp<Policy, 8, 12>;
  using ManyUpTo512 = RowPerWarp<Policy, 8, 16>;

  static constexpr int kMany = 768;  // rows from which more of them share a thread block

  static cudaError_t prepare() {
    return prepare_kernels<UpTo128, UpTo256, UpTo512, ManyUpTo128, ManyUpTo256, ManyUpTo384,
                           ManyUpTo512>();
  }

  static cudaError_t launch(const Params& params, int64_t rows, cudaStream_t stream) {
    if (rows >= kMany) {
      if (params.blocks <= ManyUpTo128::kBlocks) return launch_kernel<ManyUpTo128>(params, stream);
      if (params.blocks <= ManyUpTo256::kBlocks) return launch_kernel<ManyUpTo256>(params, stream);
      if (params.blocks <= ManyUpTo384::kBlocks) return launch_kernel<ManyUpTo384>(params, stream);
      return launch_kernel<ManyUpTo512>(params, stream);
    }
    if (params.blocks <= UpTo128::kBlocks) return launch_kernel<UpTo128>(params, stream);
    if (params.blocks <= UpTo256::kBlocks) return launch_kernel<UpTo256>(params, stream);
    return launch_kernel<UpTo512>(params, stream);
  }
};

// Longer rows, as rows x warps x items a thread; h: by halves.
//   blocks    S = 64                        128                      256
//    2,048    4x8x32    4.11  8x16x32 4.68                           8x16x32   5.88  slices 6.99
//    4,096    4x16x32   5.68  4x16x64 6.18  8x16x64h  6.51           8x16x64h  8.62  slices 9.62
//             4x16x32h  5.38  8x16x64 6.37                           8x16x64   9.42
//    8,192    4x16x64h  8.00  4x16x64 8.69  8x16x128h 9.51           8x16x128h 13.5  slices 14.4
//             8x16x128h 8.76  slices  11.3  4x16x64h 10.60  slices 11.8
// At 4,096 halves gain a tenth, and take thrice as long where many scores are alike.
// 8,192 blocks, as 4x16x64h and 8x16x128h:
//   S = 64   8.5  8.9      80   9.2  9.3      96  10.0  9.4     112  10.5  9.7
//
// Rows that thread blocks share, H = 1. A row a block, or from 64 rows on 4x16x64h; 4x8x32, four of
// them; 8x16x32h, four of them:
//   blocks    S = 32          64            96            120           128           192
//    5,000                    6.5 5.4 6.2                 6.6 5.7 6.4   6.7 -   6.6
//    8,192    7.4 5.2 6.1     7.9 5.2 6.3   7.9 6.1 6.5   8.0 6.5 6.9   8.1 7.8 6.6   8.2 8.2 8.0
// Two blocks a row; slices, as one block for eight rows, 2, 4, 8:
//   blocks   S = 32                   64                     128                     512
//   16,384    9  18.0 13.1  9.8  8.8  11  18.2 13.2 10.1 9.3  21  18.4 13.5 11.0 18  20  20 32
//   32,768   15  33.3 19.4 13.6 11.1  19  33.5 19.6 14.0 12   36  33.9 20.0 15.2 24  37  34 50
//  131,072   51   103 60.3 35.6 21.6  66   104 60.8 36.3 24  125   105 62.0 40.4 56
template <class Policy>
struct LongRowsKernels {
  static constexpr bool kNarrow = Policy::kTopK <= 16;  // wider selections lack room for eight rows
  static constexpr bool kByHalves = Policy::kTopK <= 32;
  using UpTo2048 = RowsPerBlock<Policy, 4, 8, 32>;
  using UpTo4096 = RowsPerBlock<Policy, 4, 16, 32>;
  using UpTo8192 = std::conditional_t<kByHalves, RowsByHalves<Policy, 4, 16, 64>,
                                      RowsPerBlock<Policy, 4, 16, 64>>;
  using ManyUpTo2048 = RowsPerBlock<Policy, 8, 16, 32>;
  using ManyUpTo4096 = RowsPerBlock<Policy, 8, 16, 64>;
  using Longer = RowsInSlices<Policy, kNarrow ? 16 : 8>;
  using ManyUpTo8192 = RowsByHalves<Policy, 8, 16, 128>;
  // Several thread blocks a row.
  using FewSharedUpTo8192 = RowsPerBlock<Policy, 4, 8, 32, 4>;
  using SharedUpTo8192 = RowsByHalves<Policy, 8, 16, 32, 4>;
  template <int kShares>
  using Shared = RowsInSlices<Policy, kNarrow ? 16 : 8, kShares>;

  // Rows from which more of them share a thread block, and if they are too long for registers.
  static constexpr int kMany = 512, kManyByHalves = 384;
  // Clusters up to which rows are shared by four thread blocks: those of FewSharedUpTo8192 while
  // all fit an H200 at once, or two more where nothing else shares rows; those of SharedUpTo8192
  // not as long, since clusters are slow to read what is not in the second-level cache.
  static constexpr int kFewShared = kByHalves ? clusters_at_once(4) : 32, kShared = 24;

  static cudaError_t prepare(int32_t& features) {
    cudaError_t error = prepare_kernels<UpTo2048, UpTo4096, UpTo8192, ManyUpTo2048, Longer,
                                        FewSharedUpTo8192, Shared<2>, Shared<4>, Shared<8>>();
    if constexpr (kByHalves) {
      if (error == cudaSuccess) error = prepare_kernels<SharedUpTo8192>();
    }
    if constexpr (kNarrow) {
      if (error == cudaSuccess) error = prepare_kernels<ManyUpTo4096, ManyUpTo8192>();
    }
    return error == cudaSuccess ? expect_clusters<Shared<8>>(features) : error;
  }

  static cudaError_t launch(const Params& params, int64_t rows, cudaStream_t stream) {
    const bool many = rows >= kMany;
    if (params.blocks <= UpTo2048::kBlocks) {
      return many ? launch_kernel<ManyUpTo2048>(params, stream)
                  : launch_kernel<UpTo2048>(params, stream);
    }
    if (params.blocks <= UpTo4096::kBlocks) {
      if constexpr (kNarrow) {
        if (many) return launch_kernel<ManyUpTo4096>(params, stream);
      }
      return launch_kernel<UpTo4096>(params, stream);
    }
    if (params.blocks > UpTo8192::kBlocks) return launch_longer(params, stream);
    return launch_up_to_8192(params, rows, stream);
  }

 private:
  static cudaError_t launch_up_to_8192(const Params& params, int64_t rows, cudaStream_t stream) {
    const bool shares = params.has(Params::kClusters);
    if (shares && clusters_of<FewSharedUpTo8192>(params) <= kFewShared) {
      return launch_kernel<FewSharedUpTo8192>(params, stream);
    }
    if constexpr (kByHalves) {
      if (shares && clusters_of<SharedUpTo8192>(params) <= kShared) {
        return launch_kernel<SharedUpTo8192>(params, stream);
      }
    }
    if constexpr (kNarrow) {
      if (rows >= kManyByHalves) return launch_kernel<ManyUpTo8192>(params, stream);
    }
    return launch_kernel<UpTo8192>(params, stream);
  }

  static cudaError_t launch_longer(const Params& params, cudaStream_t stream) {
    const bool shares = params.has(Params::kClusters);
    if (shares && fit_at_once<Shared<8>>(params)) return launch_kernel<Shared<8>>(params, stream);
    if (shares && fit_at_once<Shared<4>>(params)) return launch_kernel<Shared<4>>(params, stream);
    if (shares && fit_at_once<Shared<2>>(params)) return launch_kernel<Shared<2>>(params, stream);
    return launch_kernel<Longer>(params, stream);
  }
};

template <class Policy>
cudaError_t SomeRows<Policy>::prepare(int32_t& features) {
  const cudaError_t error = ShortRowsKernels<Policy>::prepare();
  return error == cudaSuccess ? LongRowsKernels<Policy>::prepare(features) : error;
}

template <class Policy>
cudaError_t SomeRows<Policy>::launch(const Params& params, cudaStream_t stream) {
  using Short = ShortRowsKernels<Policy>;
  const int64_t rows = rows_of(params);
  if (params.blocks <= Short::UpTo512::kBlocks) return Short::launch(params, rows, stream);
  return LongRowsKernels<Policy>::launch(params, rows, stream);
}

}  // namespace flashinfer_msa
