// SPDX-License-Identifier: Apache-2.0
// Launch scope: the kernels for few rows, and which of them takes how many blocks.
#pragma once

#include "launch.cuh"
#include "rows_per_block.cuh"
#include "topk_select.cuh"

namespace flashinfer_msa {

// The kernel of each size; one chunk holds as many blocks as the comment says. Measured on an H200,
// H = 4, float32, in microseconds (an empty launch takes 0.62), as rows x warps x items a thread:
//   blocks   S = 1                                S = 64
//      128   1x1x4  2.01   1x1x8  2.30            1x1x4  2.59   4x4x4   2.57
//      512   1x2x8  2.38   1x1x16 2.58            1x2x8  3.37   4x8x8   3.25
//    2,048   1x8x8  2.98   1x16x8 3.27            1x8x8  7.58   4x8x32  6.22   8x8x32 10.4
//    8,192   1x8x32 3.74   1x32x8 4.61            1x8x32 18.1
template <class Policy>
struct FewRowsKernels {
  using Warp = RowsPerBlock<Policy, 1, 1, 4>;    // 128
  using Small = RowsPerBlock<Policy, 1, 2, 8>;   // 512
  using Medium = RowsPerBlock<Policy, 1, 8, 8>;  // 2,048
  using Large = RowsPerBlock<Policy, 1, 8, 32>;  // 8,192; longer rows take several chunks
  // For adjacent tokens, four a block:
  using SharedWarp = RowsPerBlock<Policy, 4, 4, 4>;    // 128
  using SharedSmall = RowsPerBlock<Policy, 4, 8, 8>;   // 512
  using SharedLarge = RowsPerBlock<Policy, 4, 8, 32>;  // 2,048; longer rows take several chunks

  static constexpr int kSharedTokens = 4;      // from which short rows share a block
  static constexpr int64_t kSharedRows = 128;  // and long ones, when there are as many

  static cudaError_t prepare() {
    cudaError_t error = prepare_kernel<Warp>();
    if (error == cudaSuccess) error = prepare_kernel<Small>();
    if (error == cudaSuccess) error = prepare_kernel<Medium>();
    if (error == cudaSuccess) error = prepare_kernel<Large>();
    if (error == cudaSuccess) error = prepare_kernel<SharedWarp>();
    if (error == cudaSuccess) error = prepare_kernel<SharedSmall>();
    if (error == cudaSuccess) error = prepare_kernel<SharedLarge>();
    return error;
  }

  static cudaError_t launch(const Params& params, cudaStream_t stream) {
    const int blocks = params.blocks;
    const int64_t rows = int64_t{params.heads} * params.tokens;
    if (params.token_stride == 1 && params.tokens >= kSharedTokens) {
      if (blocks <= SharedWarp::kChunk) return launch_kernel<SharedWarp>(params, stream);
      if (rows >= kSharedRows) {
        if (blocks <= SharedSmall::kChunk) return launch_kernel<SharedSmall>(params, stream);
        return launch_kernel<SharedLarge>(params, stream);
      }
    }
    if (blocks <= Warp::kChunk) return launch_kernel<Warp>(params, stream);
    if (blocks <= Small::kChunk) return launch_kernel<Small>(params, stream);
    if (blocks <= Medium::kChunk) return launch_kernel<Medium>(params, stream);
    return launch_kernel<Large>(params, stream);
  }
};

template <class Policy>
cudaError_t FewRows<Policy>::prepare() {
  return FewRowsKernels<Policy>::prepare();
}

template <class Policy>
cudaError_t FewRows<Policy>::launch(const Params& params, cudaStream_t stream) {
  return FewRowsKernels<Policy>::launch(params, stream);
}

}  // namespace flashinfer_msa
