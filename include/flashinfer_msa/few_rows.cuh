// SPDX-License-Identifier: Apache-2.0
// Launch scope: the kernels for few rows, and which of them takes how many blocks.
#pragma once

#include "launch.cuh"
#include "row_per_block.cuh"
#include "topk_select.cuh"

namespace flashinfer_msa {

// A row a thread block, as warps x items a thread. Measured on an H200, H = 4, S = 1, float32,
// cold, in microseconds; behind each kernel its best rival.
//   blocks    256  1x8  1.36  2x8  1.41      2,048  8x8  1.68  4x16  1.91
//             512  2x8  1.39  4x4  1.44      8,192  8x32 2.45  16x16 2.54
//           1,024  4x8  1.46  8x8  1.67
template <class Policy>
struct FewRowsKernels {
  using UpTo128 = RowPerBlock<Policy, 1, 4>;
  using UpTo256 = RowPerBlock<Policy, 1, 8>;
  using UpTo512 = RowPerBlock<Policy, 2, 8>;
  using UpTo1024 = RowPerBlock<Policy, 4, 8>;
  using UpTo2048 = RowPerBlock<Policy, 8, 8>;
  using UpTo8192 = RowPerBlock<Policy, 8, 32>;
  using Longer = RowPerBlock<Policy, 8, 32, true>;
};

template <class Policy>
cudaError_t FewRows<Policy>::prepare() {
  using K = FewRowsKernels<Policy>;
  return prepare_kernels<typename K::UpTo128, typename K::UpTo256, typename K::UpTo512,
                         typename K::UpTo1024, typename K::UpTo2048, typename K::UpTo8192,
                         typename K::Longer>();
}

template <class Policy>
cudaError_t FewRows<Policy>::launch(const Params& params, cudaStream_t stream) {
  using K = FewRowsKernels<Policy>;
  const int blocks = params.blocks;
  if (blocks <= K::UpTo128::kChunk) return launch_kernel<typename K::UpTo128>(params, stream);
  if (blocks <= K::UpTo256::kChunk) return launch_kernel<typename K::UpTo256>(params, stream);
  if (blocks <= K::UpTo512::kChunk) return launch_kernel<typename K::UpTo512>(params, stream);
  if (blocks <= K::UpTo1024::kChunk) return launch_kernel<typename K::UpTo1024>(params, stream);
  if (blocks <= K::UpTo2048::kChunk) return launch_kernel<typename K::UpTo2048>(params, stream);
  if (blocks <= K::UpTo8192::kChunk) return launch_kernel<typename K::UpTo8192>(params, stream);
  return launch_kernel<typename K::Longer>(params, stream);
}

}  // namespace flashinfer_msa
