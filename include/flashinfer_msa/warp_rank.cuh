// SPDX-License-Identifier: Apache-2.0
// Warp scope: ranks by counting, over a few scores in shared memory that all lanes read at once.
#pragma once

#include "row.cuh"

namespace flashinfer_msa {

// Groups for each lane, so that at most half of all groups lie above a threshold of `topk`.
constexpr int groups_per_lane(int topk) { return topk <= 16 ? 1 : topk <= 32 ? 2 : 4; }

// Scores for each lane, of the longest list that is ranked as it is. A list for 16 is rarely longer
// than one a lane, but of a thousand rows one commonly is, and the call waits for it.
constexpr int ranked_per_lane(int topk, bool has_many_rows) {
  return topk <= 16 && has_many_rows ? 2 : groups_per_lane(topk);
}

// Whether a thread block with so many rows counts as one that has many.
constexpr bool has_many_rows(int rows) { return rows >= 8; }

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
FLASHINFER_MSA_DEVICE float kth_leader(const float* leader, const float (&mine)[kPerLane],
                                       int wanted) {
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

// Of the worst chosen, which tie, keeps the first that there is room for.
template <int kMine>
FLASHINFER_MSA_DEVICE void drop_ties(const int (&above)[kMine], int wanted,
                                     uint32_t (&chosen)[kMine]) {
  int worst = 0;
  FLASHINFER_MSA_UNROLL
  for (int g = 0; g < kMine; ++g) {
    if (chosen[g] >> lane_index() & 1) worst = above[g] > worst ? above[g] : worst;
  }
  worst = warp_max(worst);  // and so many exceed it
  int ties = wanted - worst;
  FLASHINFER_MSA_UNROLL
  for (int g = 0; g < kMine; ++g) {
    const bool is_chosen = chosen[g] >> lane_index() & 1;
    const uint32_t tied = warp_ballot(is_chosen && above[g] == worst);
    const bool stays = above[g] < worst || count_bits(tied & lower_lanes()) < ties;
    chosen[g] = warp_ballot(is_chosen && stays);
    ties = ties < count_bits(tied) ? 0 : ties - count_bits(tied);
  }
}

// Hands over those of a lane's scores that fewer than `wanted` of `total` exceed.
template <int kMine, class Emit>
FLASHINFER_MSA_DEVICE int emit_ranked(const float (&mine)[kMine], const int32_t (&id)[kMine],
                                      const int (&above)[kMine], int total, int wanted,
                                      const Emit& emit) {
  const int lane = lane_index();
  uint32_t chosen[kMine];
  int all = 0;
  FLASHINFER_MSA_UNROLL
  for (int g = 0; g < kMine; ++g) {
    chosen[g] = warp_ballot(g * kWarpSize + lane < total && above[g] < wanted);
    all += count_bits(chosen[g]);
  }
  if (FLASHINFER_MSA_UNLIKELY(all > wanted)) {
    drop_ties(above, wanted, chosen);
    all = wanted;
  }
  int slot = 0;
  FLASHINFER_MSA_UNROLL
  for (int g = 0; g < kMine; ++g) {
    if (chosen[g] >> lane & 1) {
      emit(slot + count_bits(chosen[g] & lower_lanes()), mine[g], id[g]);
    }
    slot += count_bits(chosen[g]);
  }
  return all;
}

// One warp hands over the best `wanted` of `total` scores, no more than kMine a lane: it calls
// emit(slot, score, block), slots ascending with the list, and answers how many they are. The
// list's j-th lies at place(j) of what the warp can see, and may be overwritten by `emit`. `room`,
// aligned to 16 bytes, is for as many scores as there may be.
template <int kMine, class Place, class Emit>
FLASHINFER_MSA_DEVICE int emit_best(const float* score, const int32_t* block, const Place& place,
                                    int total, int wanted, float* room, const Emit& emit) {
  const int lane = lane_index();
  float mine[kMine];
  int32_t id[kMine];
  int above[kMine];
  FLASHINFER_MSA_UNROLL
  for (int g = 0; g < kMine; ++g) {
    const int j = g * kWarpSize + lane;
    const int at = place(j < total ? j : 0);
    mine[g] = j < total ? nan_as_infinity(score[at]) : no_score();
    id[g] = block[at];
    room[j] = mine[g];
  }
  sync_warp();
  count_above<kMine * kWarpSize>(room, mine, above);
  return emit_ranked(mine, id, above, total, wanted, emit);
}

// The same of a list that is in order of places, without NaN, and -inf past its end.
template <int kMine, class Emit>
FLASHINFER_MSA_DEVICE int emit_ready(const float* score, const int32_t* block, int total,
                                     int wanted, const Emit& emit) {
  float mine[kMine];
  int32_t id[kMine];
  int above[kMine];
  FLASHINFER_MSA_UNROLL
  for (int g = 0; g < kMine; ++g) {
    const int j = g * kWarpSize + lane_index();
    mine[g] = score[j];
    id[g] = j < total ? block[j] : 0;
  }
  count_above<kMine * kWarpSize>(score, mine, above);
  return emit_ranked(mine, id, above, total, wanted, emit);
}

}  // namespace flashinfer_msa
