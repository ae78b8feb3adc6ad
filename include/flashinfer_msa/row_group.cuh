// SPDX-License-Identifier: Apache-2.0
// Warp scope: rows of adjacent tokens side by side in a warp, lane = row + kRows * member, so that
// the lanes of one load touch whole sectors of memory.
#pragma once

#include "row.cuh"

namespace flashinfer_msa {

template <int kRowsT>
struct RowGroup {
  static constexpr int kRows = kRowsT;
  static constexpr int kMembers = kWarpSize / kRows;  // lanes of a row

  static FLASHINFER_MSA_DEVICE int row() { return lane_index() % kRows; }
  static FLASHINFER_MSA_DEVICE int member() { return lane_index() / kRows; }

  // Row `r`, of which lane `r` is a member.
  template <class RowT>
  static FLASHINFER_MSA_DEVICE RowT of_row(const RowT& mine, int r) {
    return {warp_shuffle(mine.extent, r), warp_shuffle(mine.begin, r), warp_shuffle(mine.end, r)};
  }

  // Calls visit(r) for the rows of a thread block that fall to this of its warps.
  template <int kWarps, class Visit>
  static FLASHINFER_MSA_DEVICE void for_each_row(const Visit& visit) {
    if constexpr (kWarps >= kRows) {
      if (warp_index() < kRows) visit(warp_index());
    } else {
      FLASHINFER_MSA_UNROLL_BY(1)
      for (int r = warp_index(); r < kRows; r += kWarps) visit(r);
    }
  }

  // The value of the same row's member `member() ^ bits`.
  template <class T>
  static FLASHINFER_MSA_DEVICE T exchange(T x, int bits) {
    return warp_exchange(x, bits * kRows);
  }

  // The sum over the row's members before this one, and over all of them in `all`.
  static FLASHINFER_MSA_DEVICE int sum_before(int x, int& all) {
    const int lane = lane_index();
    int sum = x;
    FLASHINFER_MSA_UNROLL
    for (int step = kRows; step < kWarpSize; step *= 2) {
      const int theirs = warp_shuffle(sum, (lane - step) & (kWarpSize - 1));
      sum += lane >= step ? theirs : 0;
    }
    all = warp_shuffle(sum, row() + (kMembers - 1) * kRows);
    return sum - x;
  }

  // Fills `score` from a stretch of the row, of which `items` scores exist.
  template <class Score, int kItems>
  static FLASHINFER_MSA_DEVICE void load(const Score* next, int64_t block_stride, int items,
                                         float (&score)[kItems]) {
    const int stride = in_register(static_cast<int>(block_stride));
    if (warp_all(items >= kItems)) {
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kItems; ++i) score[i] = load_score(next + int64_t{i} * stride);
    } else {
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kItems; ++i) {
        score[i] = load_score_if(i < items, next + int64_t{i} * stride);
      }
    }
  }

  // Hides the first `items` scores of a stretch: forced blocks are not for choice.
  template <int kItems>
  static FLASHINFER_MSA_DEVICE void hide(int items, float (&score)[kItems]) {
    if (warp_all(items <= 0)) return;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      if (i < items) score[i] = no_score();
    }
  }

  // How many scores of a stretch pass.
  template <int kItems>
  static FLASHINFER_MSA_DEVICE int count(const float (&score)[kItems], float passing) {
    int some[2] = {};  // two sums: additions to one would wait for each other
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) count_if_passes(some[i % 2], score[i], passing);
    return some[0] + some[1];
  }

  // x, which the compiler does not know: it would keep the results of all comparisons of count()
  // until append(), which costs more than to compare again. All lanes call.
  static FLASHINFER_MSA_DEVICE float disguise(float x) { return warp_exchange(x, 0); }

  // Appends those that pass to a list.
  template <class Cursor, int kItems>
  static FLASHINFER_MSA_DEVICE void append(Cursor cursor, const float (&score)[kItems],
                                           float passing, int first_block) {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) cursor.append_if_passes(score[i], passing, first_block + i);
  }
};

}  // namespace flashinfer_msa
