// SPDX-License-Identifier: Apache-2.0
// Warp scope: ranks by counting, over a few scores in shared memory that all lanes read at once.
#pragma once

#include "row.cuh"

namespace flashinfer_msa {

// Groups for each lane, so that at most half of all groups lie above a threshold of `topk`.
constexpr int groups_per_lane(int topk) { return topk <= 16 ? 1 : topk <= 32 ? 2 : 4; }

FLASHINFER_MSA_DEVICE uint32_t lower_lanes() { return (1u << lane_index()) - 1u; }

// How many of kCount scores in shared memory (aligned to 16 bytes) exceed each of the lane's own.
template <int kCount, int kMine>
FLASHINFER_MSA_DEVICE void count_above(const float* scores, const float (&mine)[kMine],
                                       int (&above)[kMine]) {
  int odd[kMine];  // a second sum: additions to one would wait for each other
  FLASHINFER_MSA_UNROLL
  for (int g = 0; g < kMine; ++g) above[g] = odd[g] = 0;
  FLASHINFER_MSA_UNROLL
  for (int i = 0; i < kCount; i += 4) {
    float four[4];
    read_scores(scores + i, four);
    FLASHINFER_MSA_UNROLL
    for (int j = 0; j < 4; ++j) {
      FLASHINFER_MSA_UNROLL
      for (int g = 0; g < kMine; ++g) {
        count_if_exceeds(j % 2 == 0 ? above[g] : odd[g], four[j], mine[g]);
      }
    }
  }
  FLASHINFER_MSA_UNROLL
  for (int g = 0; g < kMine; ++g) above[g] += odd[g];
}

// The `wanted`-th largest of the leaders in shared memory, -inf if there are fewer. All lanes call
// and get it; the leaders must be visible to the warp.
template <int kPerLane>
FLASHINFER_MSA_DEVICE float kth_leader(const float (&leader)[kPerLane * kWarpSize],
                                       const float (&mine)[kPerLane], int wanted) {
  int above[kPerLane];
  count_above<kPerLane * kWarpSize>(leader, mine, above);
  int32_t least = ordered_bits(infinity());
  FLASHINFER_MSA_UNROLL
  for (int g = 0; g < kPerLane; ++g) {
    const int32_t key = ordered_bits(mine[g]);
    if (above[g] < wanted && key < least) least = key;
  }
  return from_ordered_bits(warp_min(least));
}

}  // namespace flashinfer_msa
