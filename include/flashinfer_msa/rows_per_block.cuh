// SPDX-License-Identifier: Apache-2.0
// Kernel scope: a thread block for one row, or for the rows of a few adjacent tokens, for calls
// with few rows, where latency is all. Several rows share a block where tokens lie together in
// memory: a sector of 32 bytes holds eight of them, and one row alone would waste seven. (Eight
// rows a block were slower than four: each has too few threads, or the block too many chunks.)
//
// A row is read once, in chunks that the block's registers hold (one chunk, for most rows). A round
// like warp_narrow's, with all threads of the row as dealers, leaves a handful of candidates in
// shared memory; one warp narrows those to the answer. What survives of later chunks joins the best
// of the chunks before, so any number of blocks works, and no input can overflow the list.
#pragma once

#include "warp_narrow.cuh"

namespace flashinfer_msa {

template <class PolicyT, int kRowsT, int kWarpsT, int kItemsT>
struct RowsPerBlock {
  using Policy = PolicyT;
  static constexpr int kRows = kRowsT;
  static constexpr int kWarps = kWarpsT;
  static constexpr int kItems = kItemsT;  // scores a thread
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kLanes = kWarpSize / kRows;  // of a warp, that share a row
  static constexpr int kChunk = kWarps * kLanes * kItems;
  static constexpr int kPerLane = groups_per_lane(Policy::kTopK);
  static constexpr int kLayers = kWarps * kLanes / kWarpSize;  // threads of a row in one group
  static_assert(kWarps * kLanes % kWarpSize == 0, "a row has a thread for each lane's group");
  static_assert(kItems % kPerLane == 0, "items are dealt evenly to groups");
  static_assert(kChunk < 65536, "two counts share a word");

  using List = CandidateList<Policy::kTopK, Policy::kTopK + kChunk>;
  struct Storage {
    List list[kRows];
    float leader[kRows][kLayers][kPerLane * kWarpSize];
    int32_t counts[kRows][kWarps];  // above the threshold, and reaching it << 16
    float threshold[kRows];
    // Of the chunks so far: how many blocks are in the list, and what a later chunk's score must
    // exceed (its block loses every tie).
    int32_t count[kRows];
    float passed[kRows];
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_heads(p, (p.tokens + kRows - 1) / kRows); }

  FLASHINFER_MSA_DEVICE void run() {
    const int head = params.first_head + block_y();
    const int first_token = block_x() * kRows;
    const int token = first_token + mine();
    const Row<Policy> row(params, head, token < params.tokens ? token : params.tokens - 1);
    const int wanted = Policy::wanted(params);
    const int first =
        kRows == 1 ? row.begin : 0;  // all rows of the block go through the same chunks
    const int longest = kRows == 1 ? row.end : warp_max(row.end);
    const int end = wanted > 0 ? longest : first;
    int count = 0;
    float passed = no_score();
    for (int base = first; base < end; base += kChunk) {
      float score[kItems];
      load(row, base, score);
      const float threshold = base == first ? find_threshold(score, wanted) : passed;
      count = append(score, base, count, passed, threshold, wanted);
      if (base + kChunk >= end) break;
      for_each_row([&](int r) { narrow(r, kRows == 1 ? count : warp_shuffle(count, r), wanted); });
      sync();
      count = smem.count[mine()];
      passed = smem.passed[mine()];
    }
    for_each_row([&](int r) {
      if constexpr (kRows == 1) {
        emit(r, head, token, row.begin, row.end, row.extent, count, wanted);
      } else {  // lane r reads row r
        emit(r, head, first_token + r, warp_shuffle(row.begin, r), warp_shuffle(row.end, r),
             warp_shuffle(row.extent, r), warp_shuffle(count, r), wanted);
      }
    });
  }

 private:
  // The row that the thread reads, and which of its lanes the thread is.
  static FLASHINFER_MSA_DEVICE int mine() { return lane_index() % kRows; }
  static FLASHINFER_MSA_DEVICE int lane_of_row() { return lane_index() / kRows; }
  static FLASHINFER_MSA_DEVICE uint32_t lanes_of_row() {
    return (kRows == 1 ? ~0u : 0x11111111u) << mine();
  }
  static_assert(kRows == 1 || kRows == 4, "lanes_of_row() knows these");

  // Calls visit(r) for the rows that the warp narrows and writes.
  template <class Visit>
  static FLASHINFER_MSA_DEVICE void for_each_row(const Visit& visit) {
    static_assert(kRows <= kWarps, "a warp takes one row at most");
    if (warp_index() < kRows) visit(warp_index());
  }

  // One warp needs no barrier wider than itself.
  static FLASHINFER_MSA_DEVICE void sync() { kWarps == 1 ? sync_warp() : sync_block(); }

  // A warp holds a contiguous stretch, so that (warp, item, lane) is the order of the blocks.
  static FLASHINFER_MSA_DEVICE int offset(int item) {
    return (warp_index() * kItems + item) * kLanes + lane_of_row();
  }

  static FLASHINFER_MSA_DEVICE void load(const Row<Policy>& row, int base, float (&score)[kItems]) {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const int block = base + offset(i);
      const bool inside = block < row.end && (kRows == 1 || block >= row.begin);
      score[i] = inside ? row.score(block) : no_score();
    }
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) score[i] = nan_as_infinity(score[i]);
  }

  // The `wanted`-th largest leader of the thread's row. A group is a lane of the row in all warps,
  // so that runs of high scores (a local window) spread over the groups.
  FLASHINFER_MSA_DEVICE float find_threshold(const float (&score)[kItems], int wanted) {
    const int thread = warp_index() * kLanes + lane_of_row();
    float* leader =
        kLayers == 1 ? smem.list[mine()].leader : smem.leader[mine()][thread / kWarpSize];
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kPerLane; ++g) {
      float best = score[g];
      FLASHINFER_MSA_UNROLL
      for (int i = g + kPerLane; i < kItems; i += kPerLane) best = larger(best, score[i]);
      leader[g * kWarpSize + thread % kWarpSize] = best;
    }
    sync();
    if constexpr (kWarps == 1) {
      return kth_leader<kPerLane>(smem.list[0].leader, wanted);
    } else {
      for_each_row([&](int r) {
        if constexpr (kLayers > 1) gather_leaders(r);
        const float threshold = kth_leader<kPerLane>(smem.list[r].leader, wanted);
        if (lane_index() == 0) smem.threshold[r] = threshold;
      });
      sync_block();
      return smem.threshold[mine()];
    }
  }

  FLASHINFER_MSA_DEVICE void gather_leaders(int r) {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const int group = i * kWarpSize + lane_index();
      float best = no_score();
      FLASHINFER_MSA_UNROLL
      for (int layer = 0; layer < kLayers; ++layer) {
        best = larger(best, smem.leader[r][layer][group]);
      }
      smem.list[r].leader[group] = best;
    }
    sync_warp();
  }

  // Appends the chunk's candidates to the row's list, in order: those above the threshold or, where
  // fewer than `wanted` are, those that reach it. Answers the new count.
  FLASHINFER_MSA_DEVICE int append(const float (&score)[kItems], int base, int count, float passed,
                                   float threshold, int wanted) {
    uint32_t above = 0, reached = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      if (score[i] > passed && score[i] > threshold) above |= 1u << i;
      if (score[i] > passed && score[i] >= threshold) reached |= 1u << i;
    }
    int here = count_bits(above) | count_bits(reached) << 16;
    int before = 0, all = 0;
    if constexpr (kRows == 1) {
      here = warp_sum(here);
    } else {
      FLASHINFER_MSA_UNROLL
      for (int i = kRows; i < kWarpSize; i *= 2) here += warp_shuffle(here, lane_index() ^ i);
    }
    if constexpr (kWarps == 1) {
      all = here;
    } else {
      if (lane_of_row() == 0) smem.counts[mine()][warp_index()] = here;
      sync_block();
      if constexpr (kRows == 1) {
        const int theirs = lane_index() < kWarps ? smem.counts[0][lane_index()] : 0;
        before = warp_sum(lane_index() < warp_index() ? theirs : 0);
        all = warp_sum(theirs);
      } else {
        FLASHINFER_MSA_UNROLL
        for (int w = 0; w < kWarps; ++w) {
          const int theirs = smem.counts[mine()][w];
          before += w < warp_index() ? theirs : 0;
          all += theirs;
        }
      }
    }
    const bool strict = (all & 0xffff) >= wanted;
    const uint32_t staying = strict ? above : reached;
    int slot = count + (strict ? before & 0xffff : before >> 16);
    List& list = smem.list[mine()];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const bool stays = staying >> i & 1;
      const uint32_t lanes = warp_ballot(stays) & lanes_of_row();
      if (stays) {
        const int to = slot + count_bits(lanes & lower_lanes());
        list.score[to] = score[i];
        list.block[to] = base + offset(i);
      }
      slot += count_bits(lanes);
    }
    sync();
    return count + (strict ? all & 0xffff : all >> 16);
  }

  // One warp: leaves the best blocks so far in the row's list, and what a later chunk must exceed.
  FLASHINFER_MSA_DEVICE void narrow(int r, int count, int wanted) {
    List& list = smem.list[r];
    count = list.narrow(count, wanted);
    int32_t least = ordered_bits(infinity());
    for (int i = lane_index(); i < count; i += kWarpSize) {
      const int32_t key = ordered_bits(list.score[i]);
      least = key < least ? key : least;
    }
    least = warp_min(least);
    if (lane_index() == 0) {
      smem.count[r] = count;
      smem.passed[r] = count == wanted ? from_ordered_bits(least) : no_score();
    }
  }

  // One warp: chooses among `count` candidates of row `r` and writes it.
  FLASHINFER_MSA_DEVICE void emit(int r, int head, int token, int begin, int end, int extent,
                                  int count, int wanted) {
    if (token >= params.tokens) return;
    const int topk = Policy::topk(params);
    int32_t* output = params.output + (int64_t{token} * params.heads + head) * topk;
    List& list = smem.list[r];
    int chosen = 0;
    if constexpr (List::kFitsLanes) {
      const bool is_chosen = list.is_chosen(count, wanted);
      const uint32_t all = warp_ballot(is_chosen);
      if (is_chosen) output[begin + count_bits(all & lower_lanes())] = list.block[lane_index()];
      chosen = count_bits(all);
    } else {
      chosen = list.narrow(count, wanted);
      for (int i = lane_index(); i < chosen; i += kWarpSize) output[begin + i] = list.block[i];
    }
    for (int slot = lane_index(); slot < topk; slot += kWarpSize) {
      if (slot < begin) output[slot] = slot;
      if (slot >= begin + chosen) {  // forced blocks at the end, then -1
        const int block = end + slot - begin - chosen;
        output[slot] = block < extent ? block : -1;
      }
    }
  }
};

}  // namespace flashinfer_msa
