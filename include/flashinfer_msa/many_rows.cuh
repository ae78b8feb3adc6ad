// SPDX-License-Identifier: Apache-2.0
// Launch scope: the kernels for many rows, and which of them takes which shape.
#pragma once

#include "launch.cuh"
#include "row_per_lane.cuh"
#include "row_per_quad.cuh"
#include "topk_select.cuh"

namespace flashinfer_msa {

// One warp for 32 rows does the least work; more of them fill a GPU that fewer rows would leave
// idle, and wait less for memory in between. Measured on an H200, float32, in microseconds, read
// floor last:
//   blocks   rows      1 warp   4 warps   8 warps   floor
//      128   4 x 8192    13.3      18.2      44.0     6.2
//      512   4 x 8192    36.3      31.6      54.9    17.3
//    2,048   4 x 8192    79.6      82.1     107.8    60.2
//    8,192   4 x 8192   255.7     257.0     298.5   233.6
//      128   1 x 8192     9.9       7.2      12.3     3.2
//    1,024   4 x 2048    42.9      16.9      20.3    10.3
template <class Policy, bool kBlocksTogether>
struct ManyRowsKernels {
  // Selections wider than 16 need the groups of two warps, and twice the list.
  static constexpr bool kNarrow = Policy::kTopK <= 16;
  using Lean = RowPerLane<Policy, kBlocksTogether, kNarrow ? 1 : 2, kNarrow ? 4 : 2>;
  using Wide = RowPerLane<Policy, kBlocksTogether, 4, kNarrow ? 2 : 1>;

  static constexpr int kLeanWarps = 800;  // of 32 rows each, that keep the GPU busy alone
  static constexpr int kShort = 128;      // blocks that one warp's ring holds
  static constexpr int kLong = 1536;      // blocks from which the least work wins again

  static cudaError_t prepare() { return prepare_kernels<Lean, Wide>(); }

  static cudaError_t launch(const Params& params, cudaStream_t stream) {
    const int64_t warps = int64_t{params.heads} * ((params.tokens + kWarpSize - 1) / kWarpSize);
    const bool lean = params.blocks <= kShort || params.blocks >= kLong;
    if (warps >= kLeanWarps && lean) return launch_kernel<Lean>(params, stream);
    return launch_kernel<Wide>(params, stream);
  }
};

// Four lanes a row, for short rows of adjacent tokens. Measured on an H200, float32, in
// microseconds, beside a lane a row and the read floor:
//   blocks   rows      quad   lane   floor
//      128   4 x 8192   9.9   12.9     6.2
//      128   1 x 8192   4.2    7.2     3.2
//      256   4 x 8192  19.4   23.0    10.1
//      512   4 x 8192  33.8   31.4    17.3
template <class Policy>
struct QuadKernel {
  using Quad = RowPerQuad<Policy, 4, 32>;
  static constexpr int kShort = 256;  // blocks

  static bool takes(const Params& p) {
    return p.token_stride == 1 && p.blocks <= kShort && has_small_stride(p);
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
