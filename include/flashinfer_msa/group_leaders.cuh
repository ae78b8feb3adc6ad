// SPDX-License-Identifier: Apache-2.0
// Block scope: a first lower bound for rows that a thread block shares: the `wanted`-th best of the
// leaders of groups. A group is a leader of one member in all warps, so that runs of high scores (a
// local window, a sorted row) spread over the groups.
#pragma once

#include "row_group.cuh"
#include "warp_rank.cuh"

namespace flashinfer_msa {

template <class Group, int kWarps, int kPerLane>
struct GroupLeaders {
  static constexpr int kGroups = kPerLane * kWarpSize;        // of a row
  static constexpr int kLeaders = kGroups / Group::kMembers;  // of a thread
  static constexpr int kLine = kWarpSize + 1;                 // of leaders: no bank conflicts
  struct Storage {
    float leader[kWarps][kLeaders * kLine];
  };
  Storage& storage;

  // Every thread hands in its leaders, and a barrier follows.
  FLASHINFER_MSA_DEVICE void put(const float (&leader)[kLeaders]) const {
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kLeaders; ++g) {
      storage.leader[warp_index()][g * kLine + lane_index()] = nan_as_infinity(leader[g]);
    }
  }

  // One warp: the `wanted`-th best leader of row `r`, -inf if there are fewer. `best_of`: room in
  // shared memory for the best of each group.
  FLASHINFER_MSA_DEVICE float bound(int r, int wanted, float* best_of) const {
    float best[kPerLane];
    FLASHINFER_MSA_UNROLL
    for (int k = 0; k < kPerLane; ++k) {
      const int group = k * kWarpSize + lane_index();
      const int at = group / Group::kMembers * kLine + group % Group::kMembers * Group::kRows + r;
      best[k] = storage.leader[0][at];
      FLASHINFER_MSA_UNROLL
      for (int w = 1; w < kWarps; ++w) best[k] = larger(best[k], storage.leader[w][at]);
      best_of[group] = best[k];
    }
    sync_warp();
    return kth_leader<kPerLane>(best_of, best, wanted);
  }
};

}  // namespace flashinfer_msa
