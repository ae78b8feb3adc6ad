// SPDX-License-Identifier: Apache-2.0
// Block scope: what the lanes of a thread block know together of its rows, of each of which a lane
// in every warp has a slice, or several lanes (members) have. Slices are in the order of blocks,
// warp by warp.
#pragma once

#include "quad_sort.cuh"

namespace flashinfer_msa {

template <int kWarps, int kWidth, class Owners>
struct LaneMerge {
  static constexpr int kSlices = kWarps * Owners::kMembers;
  // Warp w merges the lists of rows [kRows * w, kRows * (w + 1)): each of a row's members brings
  // the list of one slice.
  using Group = RowGroup<kWarpSize / kSlices>;
  static constexpr int kRows = Group::kRows;
  static_assert(kRows * kWarps == Owners::kRows, "each row is merged once");
  // Of two warps each keeps the lists of its own rows, which halves the room they need.
  static constexpr bool kKeepsOwn = kSlices == 2;
  static constexpr int kLine = kKeepsOwn ? kRows : kWarpSize;

  // What a lane knows of a row in the end.
  struct Share {
    float threshold;  // the `wanted`-th largest score of all slices
    int before;       // blocks of the slices before that are chosen
    int ties;         // of the slice's that equal the threshold, how many are
    int chosen;       // of all slices
  };
  struct Storage {
    float sorted[kWarps][kWidth][kLine];
    float threshold[Owners::kRows];
    int32_t before[kSlices][Owners::kRows], ties[kSlices][Owners::kRows], chosen[Owners::kRows];
  };
  Storage& storage;

  // Which of its row's slices the lane has.
  static FLASHINFER_MSA_DEVICE int own_slice() {
    return Owners::kMembers * warp_index() + Owners::member();
  }

  // The `wanted`-th largest score over all slices' descending lists, for every lane of the row.
  FLASHINFER_MSA_DEVICE float threshold(const float (&mine)[kWidth], int wanted) const {
    float list[kWidth];
    hand_over(mine, wanted, list);
    const float worst = least_of_top(list);
    if (Group::member() == 0) storage.threshold[row()] = worst;
    sync_block();
    return storage.threshold[Owners::row()];
  }

  // The same, and how the answer divides over the slices. `mine`: a slice's largest scores.
  FLASHINFER_MSA_DEVICE Share share(const float (&mine)[kWidth], int wanted) const {
    float list[kWidth];
    const int missing = hand_over(mine, wanted, list);
    const float worst = least_of_top(list);
    const float least = larger(worst, least_score());  // -inf is no candidate's
    int above = 0, equal = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      above += list[i] > least;
      equal += list[i] == least;
    }
    (least < infinity() ? above : equal) -= missing;
    int above_all = 0, equal_all = 0;
    const int above_before = Group::sum_before(above, above_all);
    const int equal_before = Group::sum_before(equal, equal_all);
    const int ties = wanted > above_all ? wanted - above_all : 0;
    const int slice = Group::member();
    storage.before[slice][row()] = above_before + (equal_before < ties ? equal_before : ties);
    storage.ties[slice][row()] = ties - equal_before;
    if (slice == 0) {
      storage.threshold[row()] = worst;
      storage.chosen[row()] = above_all + (equal_all < ties ? equal_all : ties);
    }
    sync_block();
    const int s = own_slice(), r = Owners::row();
    return {storage.threshold[r], storage.before[s][r], storage.ties[s][r], storage.chosen[r]};
  }

 private:
  // Which row the lane merges.
  static FLASHINFER_MSA_DEVICE int row() { return kRows * warp_index() + Group::row(); }

  // Where a lane of a warp puts its list, so that the members of a row read different banks.
  static FLASHINFER_MSA_DEVICE int place(int warp, int lane) {
    return (lane + kRows * warp) % kLine;
  }

  // Brings the list of slice Group::member() of row(). Networks find the kWidth-th best of a row:
  // as many of +inf as are missing head one of its lists, in place of its last. Answers how many
  // do.
  FLASHINFER_MSA_DEVICE int hand_over(const float (&mine)[kWidth], int wanted,
                                      float (&list)[kWidth]) const {
    const int w = warp_index(), l = lane_index();
    const int to = Owners::row() / kRows;
    if (!kKeepsOwn || to != w) {
      const int missing = own_slice() == with_missing(to) ? kWidth - wanted : 0;
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        if (i < missing) storage.sorted[w][i][place(w, l)] = infinity();
        if (i + missing < kWidth) storage.sorted[w][i + missing][place(w, l)] = mine[i];
      }
    }
    sync_block();
    const int slice = Group::member();
    const int from = slice / Owners::kMembers;
    const int at = place(from, row() + Owners::kRows * (slice % Owners::kMembers));
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      const bool own = kKeepsOwn && slice == w;
      list[i] = own ? mine[i] : storage.sorted[from][i][at];
    }
    return slice == with_missing(w) ? kWidth - wanted : 0;
  }

  // The slice whose list says what is missing, of rows that a warp merges: one of another warp.
  static FLASHINFER_MSA_DEVICE int with_missing(int warp) { return Owners::kMembers * (warp ^ 1); }

  // The kWidth-th largest score of a row's lists, all descending, for each of its members.
  static FLASHINFER_MSA_DEVICE float least_of_top(const float (&list)[kWidth]) {
    constexpr int kHalf = kWidth / 2;
    float top[kHalf];  // the best of two lists, half of them each
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      top[i] = larger(list[i], Group::exchange(list[kWidth - 1 - i], 1));
    }
    if constexpr (kSlices >= 4) merge_top<Group>(top);
    if constexpr (kSlices >= 8) merge_top<Group, 2>(top);
    if constexpr (kSlices >= 16) merge_top<Group, 4>(top);
    static_assert(kSlices <= 16, "lists are merged in at most four rounds");
    return least_of_pair<Group, kSlices <= 4 ? 1 : kSlices / 4>(top);
  }
};

}  // namespace flashinfer_msa
