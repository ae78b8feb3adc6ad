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
  // Several thread blocks a row.
  template <int kShares>
  using Shared = RowPerBlock<Policy, 8, 32, true, kShares>;
};

// How many thread blocks share a long row: as few as read it at once, as long as all clusters find
// room. Measured likewise, H = 1, cold, as one thread block a row, 2, 4 and 8:
//   blocks    S = 1                 4                    15                    30
//    10,000   4.5  3.5  3.8 4.8    4.7  3.5  3.9 5.1     7.2  5.3  4.9  5.9    9.3  6.3  6.3 11
//    32,768   8.5  5.5  4.0 5.0    9.5  6.3  4.8 5.6    15.1  9.5  6.2  7.2   22.9 13.2 10.9 15
//   131,072  32.1 17.6 10.2 7.3   36.8 20.2 11.6 8.5    56.3 30.6 17.0 13.8   87.3 46.1 32.3 35
inline int shares_of_row(const Params& p, int chunk) {
  if (!p.has(Params::kClusters)) return 1;
  int most = 8;
  while (most > 1 && rows_of(p) > clusters_at_once(most)) most /= 2;
  const int wanted = p.blocks <= 2 * chunk ? 2 : p.blocks <= 4 * chunk ? 4 : 8;
  return wanted < most ? wanted : most;
}

template <class Policy>
cudaError_t FewRows<Policy>::prepare(int32_t& features) {
  using K = FewRowsKernels<Policy>;
  const cudaError_t error =
      prepare_kernels<typename K::UpTo128, typename K::UpTo256, typename K::UpTo512,
                      typename K::UpTo1024, typename K::UpTo2048, typename K::UpTo8192,
                      typename K::Longer, typename K::template Shared<2>,
                      typename K::template Shared<4>, typename K::template Shared<8>>();
  return error == cudaSuccess ? expect_clusters<typename K::template Shared<8>>(features) : error;
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
  switch (shares_of_row(params, K::Longer::kChunk)) {
    case 8:
      return launch_kernel<typename K::template Shared<8>>(params, stream);
    case 4:
      return launch_kernel<typename K::template Shared<4>>(params, stream);
    case 2:
      return launch_kernel<typename K::template Shared<2>>(params, stream);
    default:
      return launch_kernel<typename K::Longer>(params, stream);
  }
}

}  // namespace flashinfer_msa
