// SPDX-License-Identifier: Apache-2.0
// Kernel scope: four lanes a row, for many short rows of adjacent tokens. Their scores lie together
// in memory: a sector of 32 bytes holds eight, and eight rows share a warp, which needs no other.
//
// A row is read once, in chunks that the lanes' registers hold. Each lane takes a contiguous
// stretch of the chunk, so that lists filled lane after lane are in the order of the blocks.
//  1. A network over the leaders of groups of the first chunk gives every row a lower bound that
//     enough scores reach.
//  2. Scores that pass the bound are listed. A list that has grown is cut back to its best, and the
//     bound rises to the worst of them.
//  3. The same network gives the exact threshold of what is listed in the end.
// Warps hide each other's wait for memory: a lane keeps few registers, and no scores are staged.
#pragma once

#include "quad_list.cuh"

namespace flashinfer_msa {

template <class PolicyT, int kWarpsT, int kItemsT>
struct RowPerQuad {
  using Policy = PolicyT;
  using Score = typename Policy::Score;
  static constexpr int kWarps = kWarpsT;  // independent: they share a launch's overhead
  static constexpr int kItems = kItemsT;  // scores a lane
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kShares = 1;
  static constexpr int kChunk = Quads::kMembers * kItems;
  static constexpr int kWidth = network_width(Policy::kTopK);
  static constexpr int kKept = 2 * kWidth;  // a list this long is not worth cutting
  using List = QuadList<kKept + 2 * kItems, kWidth>;
  static constexpr int kBlocksPerProcessor = (kWidth <= 16 ? 20 : 16) / kWarps;  // no spills
  static constexpr int kHalf = List::kHalf;
  static_assert(kItems % kHalf == 0, "items are dealt evenly to groups");

  struct Rows {  // of one warp
    typename List::Storage list;
    int32_t answer[Quads::kRows][Policy::kTopK + 1];
  };
  struct Storage {
    Rows rows[kWarps];
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_tokens(p, kWarps * Quads::kRows); }

  FLASHINFER_MSA_DEVICE void run() {
    const int head = params.first_head + block_y();
    const int first_token = (block_x() * kWarps + warp_index()) * Quads::kRows;
    const int token = existing_token(params, first_token + Quads::row());
    const RowScores<Policy> scores(params, head, token);
    wait_for_producer(scores.first);

    const Row<Policy> row(params, token);
    const int wanted = Policy::wanted(params);
    const int end = wanted > 0 ? warp_max(row.end) : 0;
    List list{rows().list};
    float passing = no_score();
    for (int base = 0; base < end; base += kChunk) {
      // All members share what is left: with fewer groups the bound would be poor.
      const int left = end - base;
      const int stretch = left < kChunk ? (left + Quads::kMembers - 1) / Quads::kMembers : kItems;
      const int first = base + Quads::member() * stretch;
      const int items = row.end - first < stretch ? row.end - first : stretch;
      float score[kItems];
      Quads::load(scores.of(first), params.block_stride, items, score);
      if (base == 0) {
        Quads::hide(row.begin - first, score);
        passing = next_below(lower_bound(score));
      }
      // One part is the rule: the stretches of all members that are left. Where too much passes for
      // the lists, it is the next member's alone.
      for (int member = 0; member < Quads::kMembers;) {
        member = append(list, score, first, member, passing);
        const bool is_last = base + kChunk >= end && member == Quads::kMembers;
        if (!is_last && warp_any(list.total > kKept)) {
          passing = larger(passing, list.shrink(wanted));
        }
      }
    }
    choose(list, row, wanted);
    sync_warp();
    write({params, head, first_token}, params.tokens - first_token);
  }

 private:
  FLASHINFER_MSA_DEVICE Rows& rows() const { return smem.rows[warp_index()]; }

  // A score of the row that at least as many reach as the network is wide, -inf if there are fewer.
  static FLASHINFER_MSA_DEVICE float lower_bound(const float (&score)[kItems]) {
    float leader[kHalf];
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kHalf; ++g) {
      leader[g] = score[g];
      FLASHINFER_MSA_UNROLL
      for (int i = g + kHalf; i < kItems; i += kHalf) {
        leader[g] = larger_or_nan(leader[g], score[i]);
      }
      leader[g] = nan_as_infinity(leader[g]);
    }
    keep_top(leader);
    return least_of_pair(leader);
  }

  // Lists the scores that pass, in order, of the members from `member` on.
  // Answers which comes next.
  static FLASHINFER_MSA_DEVICE int append(List& list, const float (&score)[kItems], int first,
                                          int member, float passing) {
    const int count = Quads::count(score, passing);
    int passes = Quads::member() >= member ? count : 0;
    int all = 0, next = Quads::kMembers;
    int before = Quads::sum_before(passes, all);
    if (FLASHINFER_MSA_UNLIKELY(warp_any(list.total + all > List::kCapacity))) {
      passes = Quads::member() == member ? passes : 0;
      before = Quads::sum_before(passes, all);
      next = member + 1;
    }
    const float same = Quads::disguise(passing);
    if (passes > 0) Quads::append(list.cursor(before), score, same, first);
    list.total += all;
    sync_warp();
    return next;
  }

  // Puts the rows' answers in shared memory.
  FLASHINFER_MSA_DEVICE void choose(const List& list, const Row<Policy>& row, int wanted) {
    int32_t* answer = rows().answer[Quads::row()];
    float threshold = no_score();
    const int chosen = list.visit_best(wanted, threshold, [&](int kept, int32_t block, float) {
      answer[row.begin + kept] = block;
    });
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < Policy::kTopK; i += Quads::kMembers) {
      const int slot = i + Quads::member();
      if (slot < row.begin) answer[slot] = slot;
      if (slot >= row.begin + chosen && slot < Policy::topk(params)) {
        answer[slot] = row.after_chosen(slot, chosen);
      }
    }
  }

  // Writes the rows: consecutive lanes, consecutive slots.
  FLASHINFER_MSA_DEVICE void write(const RowWriter<Policy>& writer, int tokens) const {
    constexpr int kSlots = (Quads::kRows * Policy::kTopK + kWarpSize - 1) / kWarpSize;  // of a lane
    const int64_t row_stride = int64_t{params.heads} * writer.topk;
    int32_t block[kSlots];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kSlots; ++i) {
      const int at = i * kWarpSize + lane_index();
      block[i] = rows().answer[at / Policy::kTopK % Quads::kRows][at % Policy::kTopK];
    }
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kSlots; ++i) {
      const int at = i * kWarpSize + lane_index();
      const int r = at / Policy::kTopK, slot = at % Policy::kTopK;
      if (r < Quads::kRows && r < tokens && slot < writer.topk) {
        writer.output[r * row_stride + slot] = block[i];
      }
    }
  }
};

}  // namespace flashinfer_msa
