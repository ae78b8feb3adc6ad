// SPDX-License-Identifier: Apache-2.0
// Launch scope: the kernels for many rows, and which of them takes which shape.
#pragma once

#include <type_traits>

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
//      512  1x4  15.1  15.6  15.5  15.9  16.1  18.8  19.1
//           4x2   9.2  11.1  11.5  15.5  16.8  18.7  22.5
//           4x3   8.8  14.4  14.9  15.7  16.7  21.7  25.5
//    2,048  1x4  34.8  34.7  35.4  36.4  38.6  46.6  53.3
//           4x2  22.6  26.0  29.4  41.7  45.5  48.7  64.9
//           4x3  21.9  34.0  35.0  36.8  40.8  52.5  68.4
// Fewer rows, H = 4: the best kernel for fewer, then 4x3 of 32, 16 and 8 rows a thread block.
//   rows    1,056                 1,152                 2,048                 4,224
//      700  4.8  8.6  6.0  5.6    7.9  7.9  5.8  5.9    8.6  8.2  6.3  6.9      -  8.9  8.4    -
//    2,040  6.5    -  8.7  7.5   10.2    -  8.5  8.9   12.1    -  9.3 10.0      -
//    4,096  9.5    - 12.2  9.9   14.6    - 11.7 12.9   18.2 19.6 13.4 14.7      - 21.9 21.1    -
//    8,192 13.8    - 19.2 14.8   20.0    - 18.7 20.9   28.4 33.3 21.8 23.8      - 38.1 35.9    -
//   16,384 25.7    - 31.2 24.7   39.9    - 31.0 35.0   54.9    - 37.6 41.9      -
// The same where blocks lie together:
//   rows      512                 1,024                 1,792                 2,300
//    1,024    -                   4.0  9.8  6.6  5.9    5.5 10.0  7.0  7.3    6.5 10.2  8.1 10.9
//    2,048    -                   6.4 13.8  9.3  7.3    9.4 14.0  9.8  9.1   11.9 14.3 11.4 14.0
//    4,096 11.0 21.2 13.6  9.0   20.8 21.5 13.3  9.9   35.1 21.7 14.2 12.6   44.5 22.2 16.8 19.6
//    8,192 12.9 36.8 22.5 13.0   24.0 36.9 21.5 14.7   39.6 37.2 22.9 20.5   51.3 37.7 27.5 33.8
template <class Policy, bool kBlocksTogether>
struct ManyRowsKernels {
  // Selections wider than 16 need the groups of two warps, and twice the list.
  static constexpr bool kNarrow = Policy::kTopK <= 16;
  // Where lines of fewer rows may start anywhere: what there is room for.
  static constexpr int kAnyTiles = !kNarrow ? 1 : sizeof(typename Policy::Score) == 4 ? 2 : 3;
  using Lean = RowPerLane<Policy, kBlocksTogether, kNarrow ? 1 : 2, kNarrow ? 4 : 2>;
  using Wide = RowPerLane<Policy, kBlocksTogether, 4, kNarrow ? 2 : 1>;
  using Wider = RowPerLane<Policy, kBlocksTogether, 4, kNarrow ? 3 : 1>;
  using Sixteen = RowPerLane<Policy, kBlocksTogether, 4, kNarrow ? 3 : 1, 16, kAnyTiles>;
  using Eight = std::conditional_t<kNarrow && kBlocksTogether,
                                   RowPerLane<Policy, kBlocksTogether, 4, 3, 8>, Sixteen>;

  template <class Kernel>
  static constexpr bool fit_processor(int blocks) {  // of an H200, where lines are aligned
    return blocks * (sizeof(typename Kernel::Aligned::Storage) + 1024) <= 228 * 1024;
  }
  static_assert(!kNarrow || (fit_processor<Lean>(8) && fit_processor<Wide>(3)),
                "what the bounds below were measured with");

  static constexpr int kShort = 512;        // blocks up to which Wider wins over those two
  static constexpr int kSixteenWarps = 67;  // of 32 rows each, from which Sixteen wins over Eight,
  static constexpr int kWiderWarps = 133;   // from which Wider,
  static constexpr int kWideWarps = 265;    // from which Wide,
  static constexpr int kLeanWarps = 400;    // and from which Lean wins

  static cudaError_t prepare() { return prepare_kernels<Lean, Wide, Wider, Sixteen, Eight>(); }

  static cudaError_t launch(const Params& params, cudaStream_t stream) {
    const int64_t warps = warps_of_rows(params);
    if (warps >= kLeanWarps) return launch_kernel<Lean>(params, stream);
    if (warps >= kWideWarps) return launch_kernel<Wide>(params, stream);
    const bool is_short = params.blocks <= kShort;
    if (warps >= kWiderWarps || is_short) return launch_kernel<Wider>(params, stream);
    if (warps >= kSixteenWarps) return launch_kernel<Sixteen>(params, stream);
    return launch_kernel<Eight>(params, stream);
  }
};

// Four lanes a row, for short rows of adjacent tokens. Measured likewise, H = 4, beside a lane a
// row (all its kernels) and a warp a row:
//   rows / 32        160           256           375           512           628           752
//      128       4.1  -   4.6  4.3  -   5.4   5.1  -   -    5.9  -   9.1
//      192                     6.4  6.1 6.2   7.3  7.6 8.3  8.6  9.6 10.9 10.0 11.0 -   12.5 11.5 -
//      256       7.1  6.7 5.5  7.4  6.5 6.5   8.4  8.3 8.7  10.0 11.3 11.6 11.2 12.9 -  14.2 14.4 -
template <class Policy>
struct QuadKernel {
  using Quad = RowPerQuad<Policy, 4, 32>;
  static constexpr int kShortest = 128;  // blocks up to which it always is,
  static constexpr int kShort = 256;     // and up to which it is for so many warps' rows
  static constexpr int kLeastWarps = 400, kMostWarps = 699;

  static bool takes(const Params& p) {
    if (p.token_stride != 1 || !has_small_stride(p) || p.blocks > kShort) return false;
    const int64_t warps = warps_of_rows(p);
    return p.blocks <= kShortest || (warps >= kLeastWarps && warps <= kMostWarps);
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
