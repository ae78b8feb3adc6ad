// SPDX-License-Identifier: Apache-2.0
// Block scope: what the warps of a thread block know together of 32 rows, of each of which lane `l`
// of every warp has a slice. The warps' slices are in block order.
#pragma once

#include "sorting_network.cuh"

namespace flashinfer_msa {

template <int kWarps, int kWidth>
struct LaneMerge {
  struct Counts {
    int32_t above[kWarps][kWarpSize], equal[kWarps][kWarpSize];
  };
  struct Storage {
    union {  // one after the other
      float sorted[kWarps / 2][kWidth][kWarpSize];
      Counts counts;
    };
    float threshold[kWarpSize];
  };
  Storage& storage;

  // The `wanted`-th largest score over all warps' descending lists, for every warp's lane.
  FLASHINFER_MSA_DEVICE float threshold(const float (&mine)[kWidth], int wanted) const {
    const int w = warp_index(), l = lane_index();
    float top[kWidth];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) top[i] = mine[i];
    FLASHINFER_MSA_UNROLL
    for (int half = kWarps / 2; half >= 1; half /= 2) {
      if (w >= half && w < 2 * half) {
        FLASHINFER_MSA_UNROLL
        for (int i = 0; i < kWidth; ++i) storage.sorted[w - half][i][l] = top[i];
      }
      sync_block();
      if (w < half) merge_descending(top, [&](int i) { return storage.sorted[w][i][l]; });
      if (half > 1) sync_block();
    }
    if (w == 0) storage.threshold[l] = pick(top, wanted - 1);
    sync_block();
    return storage.threshold[l];
  }

  // A lane's share of a row's answer.
  struct Share {
    int before;  // blocks of the slices before that are chosen
    int ties;    // of the slice's that equal the threshold, how many are
    int chosen;  // of all slices
  };

  // What threshold() answered divides so. `mine`: the slice's largest scores; all that matter of
  // those that equal the threshold are among them.
  FLASHINFER_MSA_DEVICE Share share(const float (&mine)[kWidth], float threshold,
                                    int wanted) const {
    const int w = warp_index(), l = lane_index();
    const float least = larger(threshold, least_score());  // -inf is no candidate's
    int above = 0, equal = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      above += mine[i] > least;
      equal += mine[i] == least;
    }
    storage.counts.above[w][l] = above;
    storage.counts.equal[w][l] = equal;
    sync_block();
    int above_before = 0, equal_before = 0, above_all = 0, equal_all = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWarps; ++i) {
      if (i == w) above_before = above_all, equal_before = equal_all;
      above_all += storage.counts.above[i][l];
      equal_all += storage.counts.equal[i][l];
    }
    const int ties = wanted > above_all ? wanted - above_all : 0;
    return {above_before + (equal_before < ties ? equal_before : ties), ties - equal_before,
            above_all + (equal_all < ties ? equal_all : ties)};
  }
};

}  // namespace flashinfer_msa
