// SPDX-License-Identifier: Apache-2.0
// Launch scope: the kernels for many rows, and which of them takes which shape.
#pragma once

#include "launch.cuh"
#include "row_per_lane.cuh"
#include "row_per_quad.cuh"
#include "topk_select.cuh"

namespace flashinfer_msa {

// That take 32 rows of a head each.
inline int64_t warps_of_rows(const Params& p) {
  return int64_t{p.heads} * ((p.tokens + kWarpSize - 1) / kWarpSize);
}

// One warp for 32 rows does the least work; more of them fill a GPU that fewer rows would leave
// idle. What decides is how many thread blocks fit the GPU at once: 8, 3 and 2 a processor.
// Measured on an H200, H = 1, float32, cold, in microseconds, as warps x tiles of their rings:
//   rows / 32     256   320   384   448   512   640   800
//      512  1x4  15.8  16.3  16.6  16.6  17.3  20.4  20.7
//           4x2  10.0  11.7  12.4  16.4  18.0  19.2  22.7
//           4x3   9.5  15.2  16.2  17.0  18.2  22.3  26.1
//    2,048  1x4  35.7  35.9  36.4  37.6  39.7  48.5  54.7
//           4x2  24.5  28.6  32.4  45.3  48.5  52.3  67.5
//           4x3  24.3  37.6  39.0  41.4  44.9  58.0  72.1
// Two warps with four tiles win by up to 13 % at 448 and 512, and lose elsewhere.
template <class Policy, bool kBlocksTogether>
struct ManyRowsKernels {
  // Selections wider than 16 need the groups of two warps, and twice the list.
  static constexpr bool kNarrow = Policy::kTopK <= 16;
  using Lean = RowPerLane<Policy, kBlocksTogether, kNarrow ? 1 : 2, kNarrow ? 4 : 2>;
  using Wide = RowPerLane<Policy, kBlocksTogether, 4, kNarrow ? 2 : 1>;
  using Wider = RowPerLane<Policy, kBlocksTogether, 4, kNarrow ? 3 : 1>;

  static constexpr int kWideWarps = 265;  // of 32 rows each, from which Wide,
  static constexpr int kLeanWarps = 400;  // and from which Lean wins

  static cudaError_t prepare() { return prepare_kernels<Lean, Wide, Wider>(); }

  static cudaError_t launch(const Params& params, cudaStream_t stream) {
    const int64_t warps = warps_of_rows(params);
    if (warps >= kLeanWarps) return launch_kernel<Lean>(params, stream);
    if (warps >= kWideWarps) return launch_kernel<Wide>(params, stream);
    return launch_kernel<Wider>(params, stream);
  }
};

// Four lanes a row, for short rows of adjacent tokens. Measured likewise, beside a lane a row:
//   blocks   rows      quad   lane
//      128   4 x 8192   9.3    9.6
//      160   4 x 8192  12.8   11.8
//      128   1 x 8192   4.0    6.1
//      192   1 x 8192   6.3    7.1
//      256   1 x 8192   7.3    7.5
//      256   1 x 4096   6.1    5.7
template <class Policy>
struct QuadKernel {
  using Quad = RowPerQuad<Policy, 4, 32>;
  static constexpr int kShort = 192;     // blocks,
  static constexpr int kShortest = 128;  // and where there are so many rows
  static constexpr int kMostWarps = 800;

  static bool takes(const Params& p) {
    return p.token_stride == 1 && has_small_stride(p) &&
           p.blocks <= (warps_of_rows(p) < kMostWarps ? kShort : kShortest);
  }
};

template <class Policy>
cudaError_t ManyRows<Policy>::prepare() {
  if constexpr (TopKSelect<Policy>::kHasManyRows) {
    cudaError_t error = ManyRowsKernels<Policy, false>::prepare();
    if (error == cudaSuccess) error = ManyRowsKernels<Policy, true>::prepare();
    return error == cudaSuccess ? prepare_kernel<typename QuadKernel<Policy>::Quad>() : error;
  }
  return cudaErrorNotSupported;
}

template <class Policy>
cudaError_t ManyRows<Policy>::launch(const Params& params, cudaStream_t stream) {
  if constexpr (TopKSelect<Policy>::kHasManyRows) {
    using Short = QuadKernel<Policy>;
    if (Short::takes(params)) return launch_kernel<typename Short::Quad>(params, stream);
    if (params.token_stride == 1) return ManyRowsKernels<Policy, false>::launch(params, stream);
    return ManyRowsKernels<Policy, true>::launch(params, stream);
  }
  return cudaErrorNotSupported;
}

}  // namespace flashinfer_msa
