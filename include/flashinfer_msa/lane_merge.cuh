// SPDX-License-Identifier: Apache-2.0
// Block scope: what the warps of a thread block know together of 32 rows, of each of which lane `l`
// of every warp has a slice. The warps' slices are in block order.
#pragma once

#include "quad_sort.cuh"

namespace flashinfer_msa {

template <int kWarps, int kWidth>
struct LaneMerge {
  static_assert(kWarps <= 4, "lists are merged in at most two rounds");
  // Warp w merges the lists of rows [kRows * w, kRows * (w + 1)): each of a row's members brings
  // the list of one slice.
  using Group = RowGroup<kWarpSize / kWarps>;
  static constexpr int kRows = Group::kRows;
  // Of two warps each keeps the lists of its own rows, which halves the room they need.
  static constexpr bool kKeepsOwn = kWarps == 2;
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
    float threshold[kWarpSize];
    int32_t before[kWarps][kWarpSize], ties[kWarps][kWarpSize], chosen[kWarpSize];
  };
  Storage& storage;

  // The `wanted`-th largest score over all warps' descending lists, for every warp's lane.
  FLASHINFER_MSA_DEVICE float threshold(const float (&mine)[kWidth], int wanted) const {
    float list[kWidth];
    hand_over(mine, wanted, list);
    const float worst = least_of_top(list);
    if (Group::member() == 0) storage.threshold[row()] = worst;
    sync_block();
    return storage.threshold[lane_index()];
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
    const int w = warp_index(), l = lane_index();
    return {storage.threshold[l], storage.before[w][l], storage.ties[w][l], storage.chosen[l]};
  }

 private:
  // Which row the lane merges.
  static FLASHINFER_MSA_DEVICE int row() { return kRows * warp_index() + Group::row(); }

  // So that the members of a row read different banks.
  static FLASHINFER_MSA_DEVICE int place(int slice, int row) {
    return (row + kRows * slice) % kLine;
  }

  // Brings the list of slice Group::member() of row(). Networks find the kWidth-th best of a row:
  // as many of +inf as are missing head one of its lists, in place of its last. Answers how many
  // do.
  FLASHINFER_MSA_DEVICE int hand_over(const float (&mine)[kWidth], int wanted,
                                      float (&list)[kWidth]) const {
    const int w = warp_index(), l = lane_index();
    const int to = l / kRows;
    if (!kKeepsOwn || to != w) {
      const int missing = to == (w ^ 1) ? kWidth - wanted : 0;
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        if (i < missing) storage.sorted[w][i][place(w, l)] = infinity();
        if (i + missing < kWidth) storage.sorted[w][i + missing][place(w, l)] = mine[i];
      }
    }
    sync_block();
    const int slice = Group::member();
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      const bool own = kKeepsOwn && slice == w;
      list[i] = own ? mine[i] : storage.sorted[slice][i][place(slice, row())];
    }
    return slice == (w ^ 1) ? kWidth - wanted : 0;
  }

  // The kWidth-th largest score of a row's lists, all descending, for each of its members.
  static FLASHINFER_MSA_DEVICE float least_of_top(const float (&list)[kWidth]) {
    constexpr int kHalf = kWidth / 2;
    float top[kHalf];  // the best of two lists, half of them each
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      top[i] = larger(list[i], Group::exchange(list[kWidth - 1 - i], 1));
    }
    if constexpr (kWarps == 4) merge_top(top);
    return least_of_pair<Group>(top);
  }
};

}  // namespace flashinfer_msa
