// SPDX-License-Identifier: Apache-2.0
// Kernel scope: one thread block a row, for calls with few rows, where latency is all.
//
// The row is read once, in chunks that the block's registers hold (one chunk, for most rows). A
// round like warp_narrow's, with the whole block as dealer, leaves a handful of candidates in
// shared memory; one warp narrows those to the answer. Each chunk's survivors join the best of the
// chunks before it, so any number of blocks works, and no input can overflow the list.
#pragma once

#include "warp_narrow.cuh"

namespace flashinfer_msa {

template <class PolicyT, int kWarpsT, int kItemsT>
struct RowPerBlock {
  using Policy = PolicyT;
  static constexpr int kWarps = kWarpsT;
  static constexpr int kItems = kItemsT;  // scores a thread
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kBlocksPerSM = 1;
  static constexpr int kChunk = kThreads * kItems;
  static constexpr int kPerLane = groups_per_lane(Policy::kTopK);
  static constexpr int kGroups = kPerLane * kWarpSize;
  static constexpr bool kFitsLanes = Policy::kTopK <= kWarpSize;
  static_assert(kItems % kPerLane == 0, "items are dealt evenly to groups");
  static_assert(kChunk < 65536, "two counts share a word");

  struct Storage {
    CandidateList<Policy::kTopK, Policy::kTopK + kChunk> list;
    float leader[kWarps][kGroups];
    int32_t counts[kWarps];  // above the threshold, and reaching it << 16
    float threshold;
    float passed;  // what a later chunk's score must exceed: its block loses every tie
    int32_t count;
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_heads(p, p.tokens); }

  FLASHINFER_MSA_DEVICE void run() {
    const Row<Policy> row(params, params.first_head + block_y(), block_x());
    const int wanted = Policy::wanted(params);
    const int end = wanted > 0 ? row.end : row.begin;
    int count = 0;
    float passed = no_score();
    for (int base = row.begin; base < end; base += kChunk) {
      float score[kItems];
      load(row, base, score);
      const float threshold = find_threshold(score, wanted);
      count = append(score, base, count, passed, threshold, wanted);
      if (base + kChunk >= end) break;
      if (warp_index() == 0) narrow(count, wanted);
      sync_block();
      count = smem.count;
      passed = smem.passed;
    }
    if (warp_index() == 0) emit(row, count, wanted);
  }

 private:
  // One warp needs no barrier wider than itself.
  static FLASHINFER_MSA_DEVICE void sync() { kWarps == 1 ? sync_warp() : sync_block(); }

  // A warp holds a contiguous stretch, so that (warp, item, lane) is the order of the blocks.
  static FLASHINFER_MSA_DEVICE int offset(int item) {
    return (warp_index() * kItems + item) * kWarpSize + lane_index();
  }

  static FLASHINFER_MSA_DEVICE void load(const Row<Policy>& row, int base, float (&score)[kItems]) {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int block = base + offset(i);
      score[i] = block < row.end ? row.score(block) : no_score();
    }
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) score[i] = nan_as_infinity(score[i]);
  }

  // The `wanted`-th largest leader of the chunk, for all threads. A group is a lane of all warps,
  // so that runs of high scores (a local window) spread over the groups.
  FLASHINFER_MSA_DEVICE float find_threshold(const float (&score)[kItems], int wanted) {
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kPerLane; ++g) {
      float best = score[g];
      FLASHINFER_MSA_UNROLL
      for (int i = g + kPerLane; i < kItems; i += kPerLane) best = larger(best, score[i]);
      (kWarps == 1 ? smem.list.leader : smem.leader[warp_index()])[g * kWarpSize + lane_index()] =
          best;
    }
    sync();
    if constexpr (kWarps == 1) return kth_leader<kPerLane>(smem.list.leader, wanted);
    if (warp_index() == 0) {
      FLASHINFER_MSA_UNROLL
      for (int g = 0; g < kPerLane; ++g) {
        float best = no_score();
        FLASHINFER_MSA_UNROLL
        for (int w = 0; w < kWarps; ++w) {
          best = larger(best, smem.leader[w][g * kWarpSize + lane_index()]);
        }
        smem.list.leader[g * kWarpSize + lane_index()] = best;
      }
      sync_warp();
      const float threshold = kth_leader<kPerLane>(smem.list.leader, wanted);
      if (lane_index() == 0) smem.threshold = threshold;
    }
    sync_block();
    return smem.threshold;
  }

  // Appends the chunk's candidates to the list, in order: those above the threshold or, where
  // fewer than `wanted` are, those that reach it. Answers the new count.
  FLASHINFER_MSA_DEVICE int append(const float (&score)[kItems], int base, int count, float passed,
                                   float threshold, int wanted) {
    uint32_t above = 0, reached = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      if (score[i] > passed && score[i] > threshold) above |= 1u << i;
      if (score[i] > passed && score[i] >= threshold) reached |= 1u << i;
    }
    const int here = warp_sum(count_bits(above) | count_bits(reached) << 16);
    int before = 0, all = here;
    if constexpr (kWarps > 1) {
      if (lane_index() == 0) smem.counts[warp_index()] = here;
      sync_block();
      const int theirs = lane_index() < kWarps ? smem.counts[lane_index()] : 0;
      before = warp_sum(lane_index() < warp_index() ? theirs : 0);
      all = warp_sum(theirs);
    }
    const bool strict = (all & 0xffff) >= wanted;
    int slot = count + (strict ? before & 0xffff : before >> 16);
    const uint32_t staying = strict ? above : reached;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const bool stays = staying >> i & 1;
      const uint32_t lanes = warp_ballot(stays);
      if (stays) {
        const int to = slot + count_bits(lanes & lower_lanes());
        smem.list.score[to] = score[i];
        smem.list.block[to] = base + offset(i);
      }
      slot += count_bits(lanes);
    }
    sync();
    return count + (strict ? all & 0xffff : all >> 16);
  }

  // Warp 0: leaves the best blocks so far in the list, and what a later chunk must exceed.
  FLASHINFER_MSA_DEVICE void narrow(int count, int wanted) {
    count = smem.list.narrow(count, wanted);
    int32_t least = ordered_bits(infinity());
    for (int i = lane_index(); i < count; i += kWarpSize) {
      const int32_t key = ordered_bits(smem.list.score[i]);
      least = key < least ? key : least;
    }
    least = warp_min(least);
    if (lane_index() == 0) {
      smem.count = count;
      smem.passed = count == wanted ? from_ordered_bits(least) : no_score();
    }
  }

  // Warp 0: chooses among `count` candidates and writes the row.
  FLASHINFER_MSA_DEVICE void emit(const Row<Policy>& row, int count, int wanted) {
    int chosen = 0;
    if constexpr (kFitsLanes) {
      const bool mine = smem.list.is_chosen(count, wanted);
      const uint32_t all = warp_ballot(mine);
      if (mine) {
        row.output[row.begin + count_bits(all & lower_lanes())] = smem.list.block[lane_index()];
      }
      chosen = count_bits(all);
    } else {
      chosen = smem.list.narrow(count, wanted);
      for (int i = lane_index(); i < chosen; i += kWarpSize) {
        row.output[row.begin + i] = smem.list.block[i];
      }
    }
    for (int slot = lane_index(); slot < Policy::topk(params); slot += kWarpSize) {
      if (slot < row.begin) row.output[slot] = slot;
      if (slot >= row.begin + chosen) {  // forced blocks at the end, then -1
        const int block = row.end + slot - row.begin - chosen;
        row.output[slot] = block < row.extent ? block : -1;
      }
    }
  }
};

}  // namespace flashinfer_msa
