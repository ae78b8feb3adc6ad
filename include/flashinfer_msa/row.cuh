// SPDX-License-Identifier: Apache-2.0
// Thread scope: what a call asks (Params), what a build fixes (Policy), and what follows from both
// for one row: its extent, its forced blocks, its middle, where its scores lie.
#pragma once

#include "score.cuh"

namespace flashinfer_msa {

constexpr int kWarpSize = 32;

// A function, since g++ 12 with its sanitizers gets a shift of what it reads from an array wrong.
FLASHINFER_MSA_DEVICE uint32_t bit_if(bool is_set, int place) {
  return (is_set ? 1u : 0u) << place;
}

// Bits [begin, end) of 32, counted from the highest; a range may reach beyond them.
FLASHINFER_MSA_DEVICE uint32_t bits_from(int begin) {
  return begin <= 0 ? ~0u : begin >= 32 ? 0u : ~0u >> begin;
}
FLASHINFER_MSA_DEVICE uint32_t bits_between(int begin, int end) {
  return bits_from(begin) & ~bits_from(end);
}

struct Params {
  // What not every GPU can do, nor every build for it; found before the first launch.
  enum Feature : int32_t {
    kDependentLaunch = 1,  // a kernel starts while the one before it ends: saves 0.4 us a launch
    kClusters = 2,         // thread blocks reach each other's shared memory, and can share a row
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

// Whether the kernels that step from block to block in 32 bits may serve the call.
inline bool has_small_stride(const Params& p) { return p.block_stride <= INT32_MAX; }

inline int64_t rows_of(const Params& p) { return int64_t{p.heads} * p.tokens; }

constexpr int kMaxHeads = 65535;  // of one launch: a grid's y goes no further

// For thread blocks that take so many tokens of a head each, or share them.
inline Grid grid_of_tokens(const Params& p, int tokens, int shares = 1) {
  const int heads = p.heads - p.first_head;
  return {(p.tokens + tokens - 1) / tokens * shares, heads < kMaxHeads ? heads : kMaxHeads};
}

// That token, or where there are not so many the last, whose threads then have company.
FLASHINFER_MSA_DEVICE int existing_token(const Params& p, int token) {
  const int last = p.tokens - 1;
  return token < last ? token : last;
}

// A force count of -1 leaves both counts, and topk up to kTopK, to run time: the generic build.
template <class ScoreT, int kTopKT, int kForceBeginT, int kForceEndT, bool kExtentPerTokenT>
struct Policy {
  using Score = ScoreT;
  static constexpr int kTopK = kTopKT;
  static constexpr bool kGeneric = kForceBeginT < 0;
  static constexpr int kForceBegin = kForceBeginT;
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

// Where a row's scores lie.
template <class Policy>
struct RowScores {
  using Score = typename Policy::Score;
  const Score* first;
  int64_t block_stride;  // elements

  FLASHINFER_MSA_DEVICE RowScores(const Params& p, int head, int token)
      : first(static_cast<const Score*>(p.scores) + head * p.head_stride + token * p.token_stride),
        block_stride(p.block_stride) {}

  FLASHINFER_MSA_DEVICE const Score* of(int block) const { return first + block * block_stride; }
};

// A row's extent, and its middle: blocks [begin, end).
template <class Policy>
struct Row {
  int extent, begin, end;

  FLASHINFER_MSA_DEVICE Row(int extent, int begin, int end)
      : extent(extent), begin(begin), end(end) {}
  FLASHINFER_MSA_DEVICE Row(const Params& p, int token) : Row(of_limit(p, limit(p, token))) {}
  // In two steps, so that other loads can start between: what the call says of a token's extent...
  static FLASHINFER_MSA_DEVICE int limit(const Params& p, int token) {
    return Policy::kExtentPerToken ? p.extents[token] : p.extent;
  }
  // ... and what follows from it.
  static FLASHINFER_MSA_DEVICE Row of_limit(const Params& p, int limit) {
    int extent, begin, end;
    extent = limit < 0 ? 0 : limit < p.blocks ? limit : p.blocks;
    begin = Policy::kForceBegin == 0 || Policy::force_begin(p) < extent ? Policy::force_begin(p)
                                                                        : extent;
    const int rest = extent - begin;
    end = Policy::force_end(p) < rest ? extent - Policy::force_end(p) : begin;
    return {extent, begin, end};
  }

  FLASHINFER_MSA_DEVICE bool has(int block) const { return block >= begin && block < end; }

  // What belongs in a slot after the `chosen` of the middle: a block forced at the end, then -1.
  FLASHINFER_MSA_DEVICE int32_t after_chosen(int slot, int chosen) const {
    const int block = end + slot - begin - chosen;
    return block < extent ? block : -1;
  }
};

// Writes a row's answer: its forced blocks, the chosen of its middle between them, then -1.
template <class Policy>
struct RowWriter {
  int32_t* output;
  int topk;

  FLASHINFER_MSA_DEVICE RowWriter(const Params& p, int head, int token)
      : output(p.output + (int64_t{token} * p.heads + head) * Policy::topk(p)),
        topk(Policy::topk(p)) {}

  // All but the chosen, by `lanes` lanes.
  FLASHINFER_MSA_DEVICE void frame(const Row<Policy>& row, int chosen, int lane, int lanes) const {
    for (int slot = lane; slot < topk; slot += lanes) {
      if (slot < row.begin) output[slot] = slot;
      if (slot >= row.begin + chosen) output[slot] = row.after_chosen(slot, chosen);
    }
  }
};

}  // namespace flashinfer_msa
