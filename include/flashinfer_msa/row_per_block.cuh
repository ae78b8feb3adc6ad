// SPDX-License-Identifier: Apache-2.0
// Kernel scope: a thread block a row, for calls with few rows, where latency is all: the chain is
// one round of loads and what BlockSelect does with them. Nothing that is rare lies in its way, and
// the code is short: fetching instructions costs as much as waiting for scores.
//
// Rows too long for a block's registers are read in chunks; the first warp merges each chunk's best
// into those of the chunks before, while the others go on.
#pragma once

#include "row_share.cuh"
#include "short_row.cuh"

namespace flashinfer_msa {

template <class PolicyT, int kWarpsT, int kItemsT, bool kLongT = false, int kSharesT = 1>
struct RowPerBlock {
  using Policy = PolicyT;
  using Score = typename Policy::Score;
  static constexpr int kWarps = kWarpsT;
  static constexpr int kItems = kItemsT;    // scores a thread
  static constexpr bool kLong = kLongT;     // more than one chunk
  static constexpr int kShares = kSharesT;  // thread blocks of a row
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kChunk = kThreads * kItems;  // blocks
  // Short rows are read while their extents still are.
  static constexpr bool kReadsAhead = kShares == 1 && kChunk <= 512;
  static_assert(!kLong || !kReadsAhead, "long rows are not read past their extent");
  static_assert(kShares == 1 || kLong, "short ones are not worth sharing");

  using Select = BlockSelect<Policy::kTopK, kWarps, kItems>;
  struct Best {  // of the chunks so far, then of this one; in order
    float score[2 * Policy::kTopK];
    int32_t block[2 * Policy::kTopK];
    alignas(16) float finalist[Select::kGroups];
  };
  using Share = RowShare<Policy::kTopK, 1, kShares>;
  static_assert(2 * Policy::kTopK <= Select::kGroups, "the best of two chunks are merged at once");
  struct Storage {
    typename Select::Storage select;
    Best best[kLong ? 1 : 0];
    typename ShortRow<Policy>::Storage short_row[kReadsAhead ? 0 : 1];
    typename Share::Storage share;
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_tokens(p, 1, kShares); }

  FLASHINFER_MSA_DEVICE void run() {
    const int head = params.first_head + block_y();
    const int token = Share::first_token();
    Share::get_ready();
    const RowScores<Policy> scores(params, head, token);
    const RowWriter<Policy> writer(params, head, token);
    const Score* next = scores.of(place(0));
    wait_for_producer(next);
    float score[kItems];
    if constexpr (kReadsAhead) load(next, 0, params.blocks, score);
    const Row<Policy> row(params, token);
    if constexpr (!kReadsAhead) {
      if (row.end <= ShortRow<Policy>::kBlocks) {
        if (warp_index() == 0 && Share::share() == 0) {
          ShortRow<Policy>::run(params, head, token, row, smem.short_row[0]);
        }
        return;
      }
    }
    const int wanted = Policy::wanted(params);
    const auto write = [&](int slot, float, int32_t block) {
      writer.output[row.begin + slot] = block;
    };
    if constexpr (kShares > 1) return choose_together(next, row, wanted, writer);
    int chosen = 0;
    if constexpr (!kLong) {
      if constexpr (!kReadsAhead) load(next, row.begin, row.end, score);
      hide(row, score);
      chosen = Select{smem.select}.run(score, [](int i) { return place(i); }, wanted, write);
    } else {
      chosen = choose_in_chunks(next, row, 0, row.end, wanted, write);
    }
    if (kWarps == 1 || warp_index() == 0) writer.frame(row, chosen, lane_index(), kWarpSize);
  }

 private:
  // Finds the best of this share, sends them, and writes the row if it owns it.
  FLASHINFER_MSA_DEVICE void choose_together(const Score* next, const Row<Policy>& row, int wanted,
                                             const RowWriter<Policy>& writer) {
    constexpr int kStep = kShares * kWarpSize;
    const int size = (row.end + kStep - 1) / kStep * kWarpSize;  // of a share
    const int from = Share::share() * size;
    const int to = from + size < row.end ? from + size : row.end;
    next += from * params.block_stride;
    const Share share{smem.share};
    Share::wait_until_ready();
    auto& part = share.part_of(0);
    const typename Share::PartWriter send{part};
    const int chosen = choose_in_chunks(next, row, from, to, wanted, send);
    if (thread_index() == 0) part.count = chosen;
    Share::exchange();
    if (warp_index() == 0 && Share::share() == 0) share.write_best(0, writer, row, wanted);
  }

  // The best of blocks [from, to), the first of which is at `next`.
  template <class Emit>
  FLASHINFER_MSA_DEVICE int choose_in_chunks(const Score* next, const Row<Policy>& row, int from,
                                             int to, int wanted, const Emit& emit) {
    float score[kItems];
    int chosen = 0;
    for (int base = from; base < to; base += kChunk, next += kChunk * params.block_stride) {
      load(next, row.begin - base, to - base, score);
      hide_nan(score);
      chosen = merge(score, base, chosen, wanted, base + kChunk >= to, emit);
    }
    return chosen;
  }

  // Of an item in the chunk. A warp holds a contiguous stretch.
  static FLASHINFER_MSA_DEVICE int place(int item) {
    const int warp = kWarps == 1 ? 0 : warp_index();
    return (warp * kItems + item) * kWarpSize + lane_index();
  }

  // Of the chunk at `next`, what lies in [begin, end).
  FLASHINFER_MSA_DEVICE void load(const Score* next, int begin, int end,
                                  float (&score)[kItems]) const {
    const int64_t stride = kWarpSize * params.block_stride;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i, next += stride) {
      score[i] = place(i) >= begin && place(i) < end ? load_score(next) : no_score();
    }
  }

  static FLASHINFER_MSA_DEVICE void hide(const Row<Policy>& row, float (&score)[kItems]) {
    if constexpr (kReadsAhead) {
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kItems; ++i) {
        if (place(i) < row.begin || place(i) >= row.end) score[i] = no_score();
      }
    }
    hide_nan(score);
  }
  static FLASHINFER_MSA_DEVICE void hide_nan(float (&score)[kItems]) {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) score[i] = nan_as_infinity(score[i]);
  }

  // The best of a chunk join the `kept` of the chunks before; the first warp alone works on those.
  // Answers how many are the best now, in the first warp.
  template <class Write>
  FLASHINFER_MSA_DEVICE int merge(const float (&score)[kItems], int base, int kept, int wanted,
                                  bool is_last, const Write& write) {
    Best& best = smem.best[0];
    const auto keep = [&](int slot, float s, int32_t block) {
      best.score[slot] = s;
      best.block[slot] = block;
    };
    const int found = Select{smem.select}.run(
        score, [&](int i) { return base + place(i); }, wanted,
        [&](int slot, float s, int32_t block) { keep(kept + slot, s, block); });
    if (kWarps > 1 && warp_index() != 0) return 0;
    sync_warp();
    const auto choose = [&](const auto& emit) {
      return emit_best<Select::kPerLane>(
          best.score, best.block, [](int j) { return j; }, kept + found, wanted, best.finalist,
          emit);
    };
    return is_last ? choose(write) : choose(keep);  // and the next chunk has barriers
  }
};

}  // namespace flashinfer_msa
