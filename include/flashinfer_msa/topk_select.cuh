// SPDX-License-Identifier: Apache-2.0
// Dispatch, on the host: which family of kernels serves a call. The choice depends on shape alone,
// never on data, so that a captured graph stays valid whatever its scores and extents become.
//
// Each family is instantiated by a translation unit of its own; this file only declares them.
#pragma once

#include "launch.cuh"

namespace flashinfer_msa {

// A call as its caller packs it (flashinfer_msa/launch.py): as one argument it costs a caller in
// Python 0.3 us, with one for each member 1.3.
struct Call {
  const void* scores;
  const int32_t* extents;
  int32_t* output;
  cudaStream_t stream;
  int64_t head_stride, block_stride, token_stride;
  int32_t heads, blocks, tokens;
  int32_t extent, topk, force_begin, force_end;
  int32_t features;  // of those that `prepare` found, the ones to use
};
static_assert(sizeof(Call) == 88, "nothing lies between the members");

template <class Policy>
struct FewRows {
  static cudaError_t prepare(int32_t& features);
  static cudaError_t launch(const Params& params, cudaStream_t stream);
};

template <class Policy>
struct SomeRows {
  static cudaError_t prepare(int32_t& features);
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

  // Readies the kernels on the current GPU, and answers bits of Params::Feature.
  static cudaError_t prepare(int32_t& features) {
    cudaError_t error = find_features<Policy>(features);
    if (error == cudaSuccess) error = FewRows<Policy>::prepare(features);
    if (error == cudaSuccess) error = SomeRows<Policy>::prepare(features);
    if (!kHasManyRows || error != cudaSuccess) return error;
    return ManyRows<Policy>::prepare();
  }

  static cudaError_t launch(const Call& c) {
    if (c.heads == 0 || c.tokens == 0) return cudaSuccess;
    Params params = {c.scores, c.extents,     c.output,       c.heads,        c.blocks,
                     c.tokens, c.head_stride, c.block_stride, c.token_stride, c.extent,
                     c.topk,   c.force_begin, c.force_end};
    params.aligned = lines_are_aligned(params);
    params.features = c.features;
    for (params.first_head = 0; params.first_head < params.heads; params.first_head += kMaxHeads) {
      const cudaError_t error = has_many_rows(params)   ? ManyRows<Policy>::launch(params, c.stream)
                                : has_some_rows(params) ? SomeRows<Policy>::launch(params, c.stream)
                                                        : FewRows<Policy>::launch(params, c.stream);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

 private:
  static bool has_adjacent_tokens(const Params& p) {
    return p.token_stride == 1 && has_small_stride(p);
  }

  static bool has_some_rows(const Params& p) {
    return has_adjacent_tokens(p) && p.tokens >= 4 && rows_of(p) >= least_some_rows(p);
  }

  // Rows from which those of adjacent tokens are read side by side. Where every block has a line of
  // memory to itself a row alone is slow: a processor takes in a line a cycle.
  static int64_t least_some_rows(const Params& p) {
    constexpr int64_t kLine = 24;  // scores, nearly
    if (p.blocks <= 512) return 64;
    if (!p.has(Params::kClusters) || p.blocks <= 4096) return 128;
    if (p.blocks <= 8192) return p.block_stride >= kLine ? 24 : 128;
    return p.block_stride >= kLine && p.blocks > 16384 ? 31 : 65;
  }

  static bool has_many_rows(const Params& p) {
    return kHasManyRows && rows_of(p) >= least_many_rows(p);
  }

  // Rows from which a lane or a quad of lanes a row wins over a warp or a thread block.
  static int64_t least_many_rows(const Params& p) {
    if (has_adjacent_tokens(p)) {
      if (p.blocks <= 512) return p.blocks <= 128 ? 5632 : p.blocks <= 384 ? 7168 : 3072;
      // More than one thread block of eight rows a processor. Lines that start anywhere take lanes
      // longer, what reads them score by score does not care.
      return p.aligned || p.blocks <= 1024 || p.blocks > 8192 ? 1057 : 2304;
    }
    return p.blocks <= 1024 ? 4096 : p.blocks <= 2048 ? 1792 : 512;
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
