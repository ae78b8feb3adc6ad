// SPDX-License-Identifier: Apache-2.0
// Kernel scope: a thread block for a few rows of adjacent tokens, as RowsPerBlock, where they are
// so long that its registers hold no more than the upper halves of their scores. All loads go out
// at once, and no score waits for a bound.
//  1. Each lane reads a contiguous stretch of one row. The leaders of groups give the row a lower
//     bound, of which the upper half is enough.
//  2. Blocks that reach it are listed, without their scores: the few of those are read once more.
//  3. One warp a row chooses among what is listed, and writes.
// Where more reach the bound than a list has room for, RowsPerBlock or RowsInSlices takes over.
// Where none of the rows is so long after all, RowsPerBlock does, and where all are short, or one
// is beside longer ones, a warp a row. Thread blocks of a cluster may share the rows (kSharesT).
#pragma once

#include <type_traits>

#include "rows_in_slices.cuh"
#include "rows_per_block.cuh"
#include "score_halves.cuh"

namespace flashinfer_msa {

template <class PolicyT, int kRowsT, int kWarpsT, int kItemsT, int kSharesT = 1>
struct RowsByHalves {
  using Policy = PolicyT;
  using Score = typename Policy::Score;
  using Group = RowGroup<kRowsT>;
  static constexpr int kRows = kRowsT;
  static constexpr int kWarps = kWarpsT;
  static constexpr int kItems = kItemsT;  // scores of a lane
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kStretch = Group::kMembers * kItems;    // of a warp
  static constexpr int kShares = kSharesT;                     // thread blocks of a row
  static constexpr int kBlocks = kShares * kWarps * kStretch;  // the most of a row
  using Share = RowShare<Policy::kTopK, kRows, kShares>;
  static constexpr int kPart = ScoreHalves::kItems;  // that are read at once
  static constexpr int kParts = kItems / kPart;
  static_assert(kItems % kPart == 0, "whole parts");
  static constexpr int kAtOnce = kParts == 2 ? 2 : 1;  // parts on their way, as registers allow
  static constexpr int kAhead = 4;                     // that are read before the extents are known
  using Short = ShortRow<Policy, kParts == 1 ? 4 : 8>;
  // Blocks up to which a row has a warp of its own beside longer ones: it would lie in so few
  // lanes that their leaders make no good bound.
  static constexpr int kFew = kParts == 1 ? 0 : Short::kBlocks;
  using Leaders = GroupLeaders<Group, kWarps, groups_per_lane(Policy::kTopK)>;
  static constexpr int kCapacity = 256;
  using Candidates = CandidateList<Policy::kTopK, kCapacity, has_many_rows(kRows)>;

  // The kernel for what is rare; each thread block takes its part of the rows, and shares none.
  static constexpr int kOthersRows = kRows / kShares;
  using Other = std::conditional_t<
      kOthersRows == Quads::kRows, RowsInSlices<Policy, kWarps>,
      RowsPerBlock<Policy, kOthersRows, kWarps, kBlocks * kOthersRows / kThreads>>;
  static_assert(Other::kRows * kShares == kRows && Other::kThreads == kThreads,
                "it takes over as it is");
  struct Own {
    union {
      Candidates candidates;
      typename Short::Storage short_row;
    } row[kRows];
    typename Leaders::Storage leaders;
    float bound[kRows];
    int32_t count[kWarps][kRows];
    typename Share::Storage share;
  };
  // For rows that its registers hold, beside Other's code. Of scores that become others fewer.
  static constexpr int kFewerItems = kParts == 2 && sizeof(Score) < sizeof(float) ? 16 : kPart;
  using Fewer = RowsPerBlock<Policy, kRows, kWarps, kFewerItems>;
  union Storage {
    Own own;
    typename Fewer::Storage fewer;
    typename Other::Storage other;
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
    const int limit = Row<Policy>::limit(params, token);
    const int small_stride = static_cast<int>(params.block_stride);
    // Whichever of the two does not spill.
    const int stride = sizeof(Score) == 4 ? in_register(small_stride) : small_stride;
    float score[kAtOnce][kPart];
    read<0, kAhead>(next, stride, params.blocks - first, score[0]);  // before the extents are known
    const Row<Policy> row = Row<Policy>::of_limit(params, limit);
    const int longest = warp_max(row.end);
    if (longest <= Short::kBlocks) {
      if (Share::share() > 0) return;
      return Group::template for_each_row<kWarps>(
          [&](int r) { write_short(head, first_token + r, Group::of_row(row, r), r); });
    }
    if constexpr (kShares == 1) {
      if (longest <= Fewer::kBlocks) return Fewer{params, smem.fewer}.run();
    }
    const int end = (row.end <= kFew ? 0 : row.end) - first;
    ScoreHalves part[kParts];
    FLASHINFER_MSA_UNROLL
    for (int p = 0; p < kParts; p += kAtOnce) {
      FLASHINFER_MSA_UNROLL
      for (int i = p; i < p + kAtOnce; ++i) {
        if (i == 0) read<kAhead, kPart>(next, stride, end, score[0]);
        if (i > 0) read<0, kPart>(next, stride, end - i * kPart, score[i - p]);
        next += int64_t{kPart} * stride;  // step by step: a product more would spill
      }
      if (p == 0) hide_from(end, score[0]);
      FLASHINFER_MSA_UNROLL
      for (int i = p; i < p + kAtOnce; ++i) take(score[i - p], part[i]);
    }
    static_assert(Policy::kTopK <= kPart, "a forced block is in the first part");
    const int begin = row.begin - first, wanted = Policy::wanted(params);
    const bool is_whole = begin <= 0;
    const HalfPair least = first_bound(part, is_whole ? 0 : 1, wanted);
    uint32_t marks[kParts];
    int count = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kParts; ++i) {
      marks[i] = part[i].reaching(least) & bits_between(begin - i * kPart, end - i * kPart);
      count += count_bits(marks[i]);
    }
    int all;
    const int before = count_before(count, all);
    const bool is_full = warp_any(all > kCapacity);  // in all warps
    if (kShares == 1 && FLASHINFER_MSA_UNLIKELY(is_full)) return run_other();
    if (kShares == 1 || !is_full) list(marks, first, before);
    sync_block();
    if constexpr (kShares == 1) {
      Group::template for_each_row<kWarps>([&](int r) {
        if (first_token + r >= params.tokens) return;
        const Row<Policy> mine = Group::of_row(row, r);
        if (mine.end <= kFew) return write_short(head, first_token + r, mine, r);
        const int total = warp_shuffle(all, r);
        read_again(head, first_token + r, r, total);
        smem.own.row[r].candidates.write_best(RowWriter<Policy>(params, head, first_token + r),
                                              mine, total, wanted);
      });
    } else {
      const Share share{smem.own.share};
      Share::wait_until_ready();
      Group::template for_each_row<kWarps>([&](int r) {
        if (is_full) return share.give_up(r);
        const int total = warp_shuffle(all, r);
        read_again(head, existing_token(params, first_token + r), r, total);
        share.send(r, smem.own.row[r].candidates, total, wanted);
      });
      Share::exchange();
      if (FLASHINFER_MSA_UNLIKELY(share.someone_gave_up())) return run_other();
      share.template write_owned<Group, Policy>(params, head, row);
    }
  }

 private:
  FLASHINFER_MSA_DEVICE void run_other() {
    if (block_x() * Other::kRows >= params.tokens) return;
    sync_block();  // its storage takes the place of this kernel's
    Other{params, smem.other}.run();
  }

  // Lists the blocks of the lane's marks, the first of which is the row's `before`-th.
  FLASHINFER_MSA_DEVICE void list(uint32_t (&marks)[kParts], int first, int before) {
    int32_t* to = &smem.own.row[Group::row()].candidates.block[before];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kParts; ++i) {
      for (; marks[i] != 0; ++to) {
        const int item = leading_zeros(marks[i]);
        *to = first + i * kPart + item;
        marks[i] &= ~(0x80000000u >> item);
      }
    }
  }

  // One warp: a short row, the group's r-th, if it exists.
  FLASHINFER_MSA_DEVICE void write_short(int head, int token, const Row<Policy>& row, int r) {
    if (token < params.tokens) Short::run(params, head, token, row, smem.own.row[r].short_row);
  }

  // One warp: the scores of the blocks that are listed of row `r`.
  FLASHINFER_MSA_DEVICE void read_again(int head, int token, int r, int total) {
    const RowScores<Policy> scores(params, head, token);
    Candidates& list = smem.own.row[r].candidates;
    for (int i = lane_index(); i < total; i += kWarpSize) {
      list.score[i] = load_score(scores.of(list.block[i]));
    }
  }

  // Reads some scores of a stretch, of which `items` exist.
  template <int kBegin, int kEnd>
  static FLASHINFER_MSA_DEVICE void read(const Score* next, int stride, int items,
                                         float (&score)[kPart]) {
    FLASHINFER_MSA_UNROLL
    for (int i = kBegin; i < kEnd; ++i) {
      score[i] = load_score_if(i < items, next + int64_t{i} * stride);
    }
  }
  // Of those that were read ahead, hides what lies past the row's end.
  static FLASHINFER_MSA_DEVICE void hide_from(int end, float (&score)[kPart]) {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      if (i >= end) score[i] = no_score();
    }
  }
  static FLASHINFER_MSA_DEVICE void take(float (&score)[kPart], ScoreHalves& part) {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kPart; ++i) score[i] = nan_as_infinity(score[i]);
    part.take(score);
  }

  // The upper half of what a score must reach to be among the best, by the parts from `from` on.
  FLASHINFER_MSA_DEVICE HalfPair first_bound(const ScoreHalves (&part)[kParts], int from,
                                             int wanted) {
    constexpr int kPairs = Leaders::kLeaders / 2;
    static_assert(ScoreHalves::kPairs % kPairs == 0, "items are dealt evenly to groups");
    HalfPair best[kPairs];
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kPairs; ++g) best[g] = upper_halves(no_score(), no_score());
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kParts; ++i) {
      if (i < from) continue;
      FLASHINFER_MSA_UNROLL
      for (int j = 0; j < ScoreHalves::kPairs; ++j) {
        best[j % kPairs] = larger(best[j % kPairs], part[i].pair[j]);
      }
    }
    float leader[Leaders::kLeaders];
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kPairs; ++g) {
      leader[2 * g] = lower_of(best[g]);
      leader[2 * g + 1] = upper_of(best[g]);
    }
    Leaders leaders{smem.own.leaders};
    leaders.put(leader);
    sync_block();
    Group::template for_each_row<kWarps>([&](int r) {
      const float bound = leaders.bound(r, wanted, smem.own.row[r].candidates.room);
      if (lane_index() == 0) smem.own.bound[r] = least_half_reaching(bound);
    });
    sync_block();
    const float bound = smem.own.bound[Group::row()];
    return upper_halves(bound, bound);
  }

  // The row's sum over lower warps and lanes, and over all of them in `all`.
  FLASHINFER_MSA_DEVICE int count_before(int mine, int& all) {
    int before = Group::sum_before(mine, all);
    if (Group::member() == 0) smem.own.count[warp_index()][Group::row()] = all;
    sync_block();
    all = 0;
    FLASHINFER_MSA_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      const int theirs = smem.own.count[w][Group::row()];
      before += w < warp_index() ? theirs : 0;
      all += theirs;
    }
    return before;
  }
};

}  // namespace flashinfer_msa
