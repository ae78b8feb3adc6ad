// SPDX-License-Identifier: Apache-2.0
// Kernel scope: a thread block for a few rows of adjacent tokens, whose scores lie together in
// memory: a sector of 32 bytes holds eight, and one row alone would waste seven. For calls with
// more rows than a block each is good for, and too few to give each a lane or a quad of lanes.
//
// Rows are read once, into the block's registers. Each lane takes a contiguous stretch of one row,
// so that lists filled warp after warp, lane after lane are in block order.
//  1. The leaders of groups give every row a lower bound, found by one warp.
//  2. Scores that pass the bound are listed. Where too many do, a list that has grown is cut
//     back to its best by one warp, and the bound rises to the worst of them.
//  3. One warp a row chooses among what is listed in the end, and writes.
#pragma once

#include "group_leaders.cuh"
#include "row_share.cuh"
#include "short_row.cuh"
#include "warp_narrow.cuh"

namespace flashinfer_msa {

template <class PolicyT, int kRowsT, int kWarpsT, int kItemsT, int kSharesT = 1>
struct RowsPerBlock {
  using Policy = PolicyT;
  using Score = typename Policy::Score;
  static constexpr int kWarps = kWarpsT;
  static constexpr int kItems = kItemsT;  // scores a thread
  using Group = RowGroup<kRowsT>;
  static constexpr int kRows = kRowsT;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kStretch = Group::kMembers * kItems;    // of a warp
  static constexpr int kShares = kSharesT;                     // thread blocks of a row
  static constexpr int kBlocks = kShares * kWarps * kStretch;  // the most of a row
  using Share = RowShare<Policy::kTopK, kRows, kShares>;
  using Leaders = GroupLeaders<Group, kWarps, groups_per_lane(Policy::kTopK)>;
  static constexpr int kGroups = Leaders::kGroups;    // of a row
  static constexpr int kLeaders = Leaders::kLeaders;  // of a thread
  static_assert(kItems % kLeaders == 0, "items are dealt evenly to groups");

  static constexpr int kRoom = 2 * kGroups + kStretch;
  static constexpr int kCapacity = kRoom < 256 ? 256 : kRoom;
  using List = CandidateList<Policy::kTopK, kCapacity, has_many_rows(kRows)>;
  using Cursor = ListCursor<List::kApart>;
  struct Storage {
    union {
      List list[kRows];
      typename ShortRow<Policy>::Storage short_row[kRows];
    };
    typename Leaders::Storage leaders;
    int32_t count[2][kWarps][kRows];  // that each warp lists; by turns
    int32_t total[kRows];             // in the list
    float passing[kRows];             // what a score must exceed
    typename Share::Storage share;
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_tokens(p, kRows, kShares); }

  FLASHINFER_MSA_DEVICE void run() {
    const int head = params.first_head + block_y();
    const int first_token = Share::first_token();
    Share::get_ready();
    const int token = existing_token(params, first_token + Group::row());
    const int warp = Share::share() * kWarps + warp_index();
    const int first = warp * kStretch + Group::member() * kItems;  // block
    const Score* next = RowScores<Policy>(params, head, token).of(first);
    wait_for_producer(next);

    const Row<Policy> row(params, token);
    const int wanted = Policy::wanted(params);
    const int longest = warp_max(row.end);
    if (longest <= ShortRow<Policy>::kBlocks) {
      if (Share::share() > 0) return;
      return ShortRow<Policy>::template run_rows<Group, kWarps>(params, head, first_token, row,
                                                                smem.short_row);
    }
    float score[kItems];
    Group::load(next, params.block_stride, row.end - first, score);
    Group::hide(row.begin - first, score);
    const float passing = first_bound(score, wanted);
    const int total = list(score, first, wanted, passing);
    Share{smem.share}.template write_rows<Group, kWarps, Policy>(
        params, head, row, [&](int r) -> List& { return smem.list[r]; },
        [&](int r) { return warp_shuffle(total, r); });
  }

 private:
  // What a score must exceed to be among the best: just below what `wanted` groups' leaders reach.
  FLASHINFER_MSA_DEVICE float first_bound(const float (&score)[kItems], int wanted) {
    float leader[kLeaders];
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kLeaders; ++g) {
      leader[g] = score[g];
      FLASHINFER_MSA_UNROLL
      for (int i = g + kLeaders; i < kItems; i += kLeaders) {
        leader[g] = larger_or_nan(leader[g], score[i]);
      }
    }
    Leaders leaders{smem.leaders};
    leaders.put(leader);
    sync_block();
    Group::template for_each_row<kWarps>([&](int r) {
      const float bound = leaders.bound(r, wanted, smem.list[r].room);
      if (lane_index() == 0) smem.passing[r] = next_below(bound);
    });
    sync_block();
    return smem.passing[Group::row()];
  }

  // Lists what passes. Answers how many of the row are listed.
  FLASHINFER_MSA_DEVICE int list(const float (&score)[kItems], int first, int wanted,
                                 float passing) {
    int total = 0;
    // One part is the rule: the scores of all warps. Where too much passes for the lists, it is the
    // next warp's alone, and lists that have grown are cut back to their best.
    for (int part = 0; part < kWarps;) {
      part = append(score, first, part, wanted, passing, total);
      if (part < kWarps && warp_any(total > kGroups)) {
        Group::template for_each_row<kWarps>(
            [&](int r) { narrow(r, warp_shuffle(total, r), wanted); });
        sync_block();
        total = smem.total[Group::row()];
        passing = larger(passing, smem.passing[Group::row()]);
      }
    }
    return total;
  }

  // Lists the scores that pass, in order, of the warps from `part` on. Answers which comes next.
  FLASHINFER_MSA_DEVICE int append(const float (&score)[kItems], int first, int part, int wanted,
                                   float passing, int& total) {
    const int count = Group::count(score, passing);
    int passes = warp_index() >= part ? count : 0;
    int all = 0, next = kWarps;
    int before = count_before(passes, smem.count[0], all);
    if (FLASHINFER_MSA_UNLIKELY(warp_any(total + all > kCapacity))) {
      if (part == 0 && append_few_ties(score, first, wanted, passing, total)) return kWarps;
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

  // Lists what passes, but of the scores that only just do no more than are wanted, the first:
  // where many are equal, few matter. Answers false, and lists nothing, if the lists have no room.
  FLASHINFER_MSA_DEVICE bool append_few_ties(const float (&score)[kItems], int first, int wanted,
                                             float passing, int& total) {
    constexpr int kEqual = 1 << 16;  // their count is in the upper half of a word
    const float least = from_ordered_bits(ordered_bits(passing) + 1);
    int counts = 0, all = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      counts += score[i] == least ? kEqual : !(score[i] <= least) ? 1 : 0;
    }
    const int before = count_before(counts, smem.count[1], all);
    const int equal_all = all / kEqual;
    const int all_kept = all % kEqual + (equal_all < wanted ? equal_all : wanted);
    if (warp_any(all_kept > kCapacity)) {
      sync_block();  // the counts have been read
      return false;
    }
    int equal = before / kEqual;
    int at = before % kEqual + (equal < wanted ? equal : wanted);
    List& list = smem.list[Group::row()];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const bool is_equal = score[i] == least;
      if (is_equal ? equal++ < wanted : !(score[i] <= least)) {
        list.score[at] = score[i];
        list.block[at++] = first + i;
      }
    }
    total = all_kept;
    sync_block();
    return true;
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
};

}  // namespace flashinfer_msa
