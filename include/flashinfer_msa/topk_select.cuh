// SPDX-License-Identifier: Apache-2.0
// Dispatch, on the host: which family of kernels serves a call. The choice depends on shape alone,
// never on data, so that a captured graph stays valid whatever its scores and extents become.
//
// Each family is instantiated by a translation unit of its own; this file only declares them.
#pragma once

#include "row.cuh"

namespace flashinfer_msa {

template <class Policy>
struct FewRows {
  static cudaError_t prepare();
  static cudaError_t launch(const Params& params, cudaStream_t stream);
};

template <class Policy>
struct ManyRows {
  static cudaError_t prepare();
  static cudaError_t launch(const Params& params, cudaStream_t stream);
};

template <class Policy>
struct TopKSelect {
  // Wider selections than this would not fit the registers of RowPerLane's sorting networks.
  static constexpr bool kHasManyRows = Policy::kTopK <= 32;
  static constexpr int64_t kManyRows = 4096;  // from which one lane a row wins

  static cudaError_t prepare() {
    const cudaError_t error = FewRows<Policy>::prepare();
    if (!kHasManyRows || error != cudaSuccess) return error;
    return ManyRows<Policy>::prepare();
  }

  static cudaError_t launch(Params params, cudaStream_t stream) {
    if (params.heads == 0 || params.tokens == 0) return cudaSuccess;
    params.aligned = lines_are_aligned(params);
    for (params.first_head = 0; params.first_head < params.heads; params.first_head += kMaxHeads) {
      const cudaError_t error = has_many_rows(params) ? ManyRows<Policy>::launch(params, stream)
                                                      : FewRows<Policy>::launch(params, stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

 private:
  static bool has_many_rows(const Params& p) {
    return kHasManyRows && int64_t{p.heads} * p.tokens >= kManyRows;
  }

  // Whether all that lies together starts at multiples of 16 bytes, so that it can be copied so.
  static bool lines_are_aligned(const Params& p) {
    constexpr int64_t kChunk = 16 / sizeof(typename Policy::Score);
    const int64_t line_stride = p.token_stride == 1 ? p.block_stride : p.token_stride;
    return reinterpret_cast<uintptr_t>(p.scores) % 16 == 0 && p.head_stride % kChunk == 0 &&
           line_stride % kChunk == 0;
  }
};

}  // namespace flashinfer_msa
