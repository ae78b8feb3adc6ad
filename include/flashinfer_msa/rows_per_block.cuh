// SPDX-License-Identifier: Apache-2.0
// Kernel scope: a thread block for a few rows of adjacent tokens, whose scores lie together in
// memory: a sector of 32 bytes holds eight, and one row alone would waste seven. For calls with
// more rows than a block each is good for, and too few to give each a quad of lanes.
//
// Rows are read once, in chunks that the block's registers hold. Each lane takes a contiguous
// stretch of one row, so that lists filled warp after warp, lane after lane are in block order.
//  1. The leaders of groups of the first chunk give every row a lower bound, found by one warp.
//  2. Scores that pass the bound are listed. A list that has grown is cut back to its best by one
//     warp, and the bound rises to the worst of them.
//  3. One warp a row chooses among what is listed in the end, and writes.
#pragma once

#include "row_group.cuh"
#include "short_row.cuh"
#include "warp_narrow.cuh"

namespace flashinfer_msa {

template <class PolicyT, int kRowsT, int kWarpsT, int kItemsT, bool kLongT>
struct RowsPerBlock {
  using Policy = PolicyT;
  using Score = typename Policy::Score;
  static constexpr int kWarps = kWarpsT;
  static constexpr int kItems = kItemsT;  // scores a thread
  static constexpr bool kLong = kLongT;   // more than one chunk
  using Group = RowGroup<kRowsT>;
  static constexpr int kRows = kRowsT;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kStretch = Group::kMembers * kItems;  // of a warp
  static constexpr int kChunk = kWarps * kStretch;
  static constexpr int kPerLane = groups_per_lane(Policy::kTopK);
  static constexpr int kGroups = kPerLane * kWarpSize;        // of a row
  static constexpr int kLeaders = kGroups / Group::kMembers;  // of a thread
  static constexpr int kLine = kWarpSize + 1;                 // of leaders: no bank conflicts
  static_assert(kItems % kLeaders == 0, "items are dealt evenly to groups");

  static constexpr int kRoom = 2 * kGroups + kStretch;
  static constexpr int kCapacity = kRoom < 256 ? 256 : kRoom;
  using List = CandidateList<Policy::kTopK, kCapacity>;
  using Cursor = ListCursor<sizeof(float) * (kCapacity + kGroups)>;
  struct Storage {
    union {
      List list[kRows];
      typename ShortRow<Policy>::Storage short_row[kRows];
    };
    float leader[kWarps][kLeaders * kLine];
    int32_t count[2][kWarps][kRows];  // that each warp lists; by turns
    int32_t total[kRows];             // in the list
    float passing[kRows];             // what a score must exceed
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_heads(p, (p.tokens + kRows - 1) / kRows); }

  FLASHINFER_MSA_DEVICE void run() {
    const int head = params.first_head + block_y();
    const int first_token = block_x() * kRows;
    const int last = params.tokens - 1;
    const int token = first_token + Group::row() < last ? first_token + Group::row() : last;
    const int first = warp_index() * kStretch + Group::member() * kItems;  // block, of a chunk
    const Score* next = RowScores<Policy>(params, head, token).of(first);
    wait_for_producer(next);

    const Row<Policy> row(params, token);
    const int wanted = Policy::wanted(params);
    const int longest = warp_max(row.end);
    if (longest <= ShortRow<Policy>::kBlocks) {
      for_each_row([&](int r) {
        if (first_token + r < params.tokens) {
          ShortRow<Policy>::run(params, head, first_token + r, row_of(row, r), smem.short_row[r]);
        }
      });
      return;
    }
    const int end = wanted > 0 ? longest : 0;
    float score[kItems];
    Group::load(next, params.block_stride, row.end - first, score);
    Group::hide(row.begin - first, score);
    float passing = first_bound(score, wanted);
    int total = 0;
    for (int base = 0; base < end; base += kChunk) {
      const bool is_last = !kLong || base + kChunk >= end;
      if constexpr (!kLong) {
        total = take(score, first, is_last, wanted, passing, total);
      } else {  // the next chunk is on its way while this one is worked on
        float ahead[kItems];
        next += int64_t{kChunk} * params.block_stride;
        Group::load(next, params.block_stride, row.end - first - base - kChunk, ahead);
        total = take(score, base + first, is_last, wanted, passing, total);
        FLASHINFER_MSA_UNROLL
        for (int i = 0; i < kItems; ++i) score[i] = ahead[i];
      }
    }
    for_each_row([&](int r) {
      emit(r, head, first_token + r, row_of(row, r), warp_shuffle(total, r), wanted);
    });
  }

 private:
  // Row `r`, of which lane `r` is a member.
  static FLASHINFER_MSA_DEVICE Row<Policy> row_of(const Row<Policy>& mine, int r) {
    return {warp_shuffle(mine.extent, r), warp_shuffle(mine.begin, r), warp_shuffle(mine.end, r)};
  }

  // Calls visit(r) for the rows that the warp narrows and writes.
  template <class Visit>
  static FLASHINFER_MSA_DEVICE void for_each_row(const Visit& visit) {
    if constexpr (kWarps >= kRows) {
      if (warp_index() < kRows) visit(warp_index());
    } else {
      FLASHINFER_MSA_UNROLL_BY(1)
      for (int r = warp_index(); r < kRows; r += kWarps) visit(r);
    }
  }

  // What a score must exceed to be among the best: just below what `wanted` groups' leaders reach.
  FLASHINFER_MSA_DEVICE float first_bound(const float (&score)[kItems], int wanted) {
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kLeaders; ++g) {
      float best = score[g];
      FLASHINFER_MSA_UNROLL
      for (int i = g + kLeaders; i < kItems; i += kLeaders) best = larger_or_nan(best, score[i]);
      smem.leader[warp_index()][g * kLine + lane_index()] = nan_as_infinity(best);
    }
    sync_block();
    for_each_row([&](int r) {
      float best[kPerLane];
      FLASHINFER_MSA_UNROLL
      for (int k = 0; k < kPerLane; ++k) {
        const int group = k * kWarpSize + lane_index();
        const int at = group / Group::kMembers * kLine + group % Group::kMembers * kRows + r;
        best[k] = smem.leader[0][at];
        FLASHINFER_MSA_UNROLL
        for (int w = 1; w < kWarps; ++w) best[k] = larger(best[k], smem.leader[w][at]);
        smem.list[r].leader[group] = best[k];
      }
      sync_warp();
      const float bound = kth_leader<kPerLane>(smem.list[r].leader, best, wanted);
      if (lane_index() == 0) smem.passing[r] = next_below(bound);
    });
    sync_block();
    return smem.passing[Group::row()];
  }

  // Lists what passes of a chunk, and cuts lists that have grown. Answers the row's new total.
  FLASHINFER_MSA_DEVICE int take(const float (&score)[kItems], int first, bool is_last, int wanted,
                                 float& passing, int total) {
    // One part is the rule: the scores of all warps that are left. Where too much passes for the
    // lists, it is the next warp's alone.
    for (int part = 0; part < kWarps;) {
      part = append(score, first, part, passing, total);
      if (!(is_last && part == kWarps) && warp_any(total > kGroups)) {
        for_each_row([&](int r) { narrow(r, warp_shuffle(total, r), wanted); });
        sync_block();
        total = smem.total[Group::row()];
        passing = larger(passing, smem.passing[Group::row()]);
      }
    }
    return total;
  }

  // Lists the scores that pass, in order, of the warps from `part` on. Answers which comes next.
  FLASHINFER_MSA_DEVICE int append(const float (&score)[kItems], int first, int part, float passing,
                                   int& total) {
    const int count = Group::count(score, passing);
    int passes = warp_index() >= part ? count : 0;
    int all = 0, next = kWarps;
    int before = count_before(passes, smem.count[0], all);
    if (FLASHINFER_MSA_UNLIKELY(warp_any(total + all > kCapacity))) {
      passes = warp_index() == part ? passes : 0;
      before = count_before(passes, smem.count[1], all);
      next = part + 1;
    }
    const float same = Group::disguise(passing);
    if (passes > 0) {
      const Cursor cursor(&smem.list[Group::row()].score[total + before]);
      Group::append(cursor, score, same, first);
    }
    total += all;
    sync_block();
    return next;
  }

  // The row's sum over lower warps and lanes, and over all of them in `all`.
  static FLASHINFER_MSA_DEVICE int count_before(int mine, int32_t (&count)[kWarps][kRows],
                                                int& all) {
    int before = Group::sum_before(mine, all);
    if (Group::member() == 0) count[warp_index()][Group::row()] = all;
    sync_block();
    all = 0;
    FLASHINFER_MSA_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      const int theirs = count[w][Group::row()];
      before += w < warp_index() ? theirs : 0;
      all += theirs;
    }
    return before;
  }

  // One warp: leaves the best blocks so far in the row's list, and what a later score must exceed.
  FLASHINFER_MSA_DEVICE void narrow(int r, int count, int wanted) {
    List& list = smem.list[r];
    count = list.narrow(count, wanted);
    int32_t least = ordered_bits(infinity());
    for (int i = lane_index(); i < count; i += kWarpSize) {
      const int32_t key = ordered_bits(nan_as_infinity(list.score[i]));
      least = key < least ? key : least;
    }
    least = warp_min(least);
    if (lane_index() == 0) {
      smem.total[r] = count;
      smem.passing[r] = count == wanted ? from_ordered_bits(least) : no_score();
    }
  }

  // One warp: chooses among `count` candidates of row `r` and writes it.
  FLASHINFER_MSA_DEVICE void emit(int r, int head, int token, const Row<Policy>& row, int count,
                                  int wanted) {
    if (token >= params.tokens) return;
    const RowWriter<Policy> writer(params, head, token);
    int32_t* output = writer.output + row.begin;
    List& list = smem.list[r];
    int chosen = 0;
    if constexpr (List::kFitsLanes) {
      const bool is_chosen = list.is_chosen(count, wanted);
      const uint32_t all = warp_ballot(is_chosen);
      if (is_chosen) output[count_bits(all & lower_lanes())] = list.block[lane_index()];
      chosen = count_bits(all);
    } else {
      chosen = list.narrow(count, wanted);
      for (int i = lane_index(); i < chosen; i += kWarpSize) output[i] = list.block[i];
    }
    writer.frame(row, chosen, lane_index(), kWarpSize);
  }
};

}  // namespace flashinfer_msa
