// SPDX-License-Identifier: Apache-2.0
// Launch scope: the kernels for few rows, and which of them takes how many blocks.
#pragma once

#include "launch.cuh"
#include "row_per_block.cuh"
#include "topk_select.cuh"

namespace flashinfer_msa {

// The kernel of each size; one chunk holds as many blocks as the comment says. Measured on an H200,
// H = 4, S = 1 / 64, float32, in microseconds (an empty launch takes 0.62):
//   blocks   warps x items a thread
//      128   1x4  2.01 / 2.59    1x8  2.30 / 2.75    4x4  2.33 / 2.80
//      512   2x8  2.38 / 3.37    1x16 2.58 / 3.42    4x4  2.49 / 3.39
//    2,048   8x8  2.98 / 7.58    8x16 2.93 / 7.20   16x8  3.27 / 7.96
//    8,192   8x32 3.74 / 18.1   16x16 3.79 / 19.7   32x8  4.61 / 22.0
template <class Policy>
struct FewRowsKernels {
  using Warp = RowPerBlock<Policy, 1, 4>;    // 128
  using Small = RowPerBlock<Policy, 2, 8>;   // 512
  using Medium = RowPerBlock<Policy, 8, 8>;  // 2,048
  using Large = RowPerBlock<Policy, 8, 32>;  // 8,192; longer rows take several chunks
};

template <class Policy>
cudaError_t FewRows<Policy>::prepare() {
  using Kernels = FewRowsKernels<Policy>;
  cudaError_t error = prepare_kernel<typename Kernels::Warp>();
  if (error == cudaSuccess) error = prepare_kernel<typename Kernels::Small>();
  if (error == cudaSuccess) error = prepare_kernel<typename Kernels::Medium>();
  if (error == cudaSuccess) error = prepare_kernel<typename Kernels::Large>();
  return error;
}

template <class Policy>
cudaError_t FewRows<Policy>::launch(const Params& params, cudaStream_t stream) {
  using Kernels = FewRowsKernels<Policy>;
  const int blocks = params.blocks;
  if (blocks <= Kernels::Warp::kChunk) return launch_kernel<typename Kernels::Warp>(params, stream);
  if (blocks <= Kernels::Small::kChunk)
    return launch_kernel<typename Kernels::Small>(params, stream);
  if (blocks <= Kernels::Medium::kChunk) {
    return launch_kernel<typename Kernels::Medium>(params, stream);
  }
  return launch_kernel<typename Kernels::Large>(params, stream);
}

}  // namespace flashinfer_msa
