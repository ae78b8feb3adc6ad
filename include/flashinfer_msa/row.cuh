// SPDX-License-Identifier: Apache-2.0
// Thread scope: what a call asks (Params), what a build fixes (Policy), and what follows from both
// for one row: its extent, its forced blocks, its middle, where its scores lie.
#pragma once

#include "score.cuh"

namespace flashinfer_msa {

constexpr int kWarpSize = 32;

struct Params {
  // What not every GPU can do, nor every build for it; found before the first launch.
  enum Feature : int32_t {
    kDependentLaunch = 1,  // a kernel starts while the one before it ends: saves 0.4 us a launch
    kClusters = 2,         // thread blocks in clusters
  };

  const void* scores;
  const int32_t* extents;  // one for each token; unused where Policy says the extent is uniform
  int32_t* output;         // (tokens, heads, topk), contiguous
  int32_t heads, blocks, tokens;
  int64_t head_stride, block_stride, token_stride;  // of the scores, in elements
  int32_t extent;                                   // of every row, where it is uniform
  int32_t topk, force_begin, force_end;  // read only where Policy leaves them to run time
  // Worked out by the launcher:
  int32_t first_head;  // of this launch
  bool aligned;        // lines of scores that lie together start at multiples of 16 bytes
  int32_t features;    // those that launches may use: bits of Feature

  bool has(Feature feature) const { return (features & feature) != 0; }
};

// Thread blocks of a launch: y counts heads.
struct Grid {
  int x, y;
};
constexpr int kMaxHeads = 65535;  // of one launch: a grid's y goes no further

inline Grid grid_of_heads(const Params& p, int x) {
  const int heads = p.heads - p.first_head;
  return {x, heads < kMaxHeads ? heads : kMaxHeads};
}

// A force count of -1 leaves both counts, and topk up to kTopK, to run time: the generic build.
template <class ScoreT, int kTopKT, int kForceBeginT, int kForceEndT, bool kExtentPerTokenT>
struct Policy {
  using Score = ScoreT;
  static constexpr int kTopK = kTopKT;
  static constexpr bool kGeneric = kForceBeginT < 0;
  static constexpr bool kExtentPerToken = kExtentPerTokenT;

  static FLASHINFER_MSA_DEVICE int topk(const Params& p) { return kGeneric ? p.topk : kTopK; }
  static FLASHINFER_MSA_DEVICE int force_begin(const Params& p) {
    return kGeneric ? p.force_begin : kForceBeginT;
  }
  static FLASHINFER_MSA_DEVICE int force_end(const Params& p) {
    return kGeneric ? p.force_end : kForceEndT;
  }
  // Blocks to choose from the middle. Where the extent is too short for all forced blocks the
  // middle is empty, so one number serves every row, and is a constant for the compiler.
  static FLASHINFER_MSA_DEVICE int wanted(const Params& p) {
    return topk(p) - force_begin(p) - force_end(p);
  }
};

template <class Policy>
struct Row {
  using Score = typename Policy::Score;
  const Score* scores;
  int64_t block_stride;
  int extent;
  int begin, end;  // the middle: blocks [begin, end)

  FLASHINFER_MSA_DEVICE Row(const Params& p, int head, int token) {
    const int limit = Policy::kExtentPerToken ? p.extents[token] : p.extent;
    extent = limit < 0 ? 0 : limit < p.blocks ? limit : p.blocks;
    begin = Policy::force_begin(p) < extent ? Policy::force_begin(p) : extent;
    const int rest = extent - begin;
    const int forced_end = Policy::force_end(p) < rest ? Policy::force_end(p) : rest;
    end = extent - forced_end;
    block_stride = p.block_stride;
    scores = static_cast<const Score*>(p.scores) + head * p.head_stride + token * p.token_stride;
  }

  FLASHINFER_MSA_DEVICE float score(int block) const {
    return load_score(scores + block * block_stride);
  }
};

}  // namespace flashinfer_msa
