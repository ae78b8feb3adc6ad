// SPDX-License-Identifier: Apache-2.0
// Warp scope: narrows a list of candidates in shared memory to the best `wanted`.
//
// A round deals the candidates to groups and takes each group's best score, its leader. The
// `wanted`-th largest leader is a threshold that at least `wanted` candidates reach. If fewer than
// `wanted` exceed it, it is exactly the score of the last block to choose: done. Otherwise only
// those above it stay; they sit in fewer than `wanted` groups, so a round drops half or more.
// With no more candidates than groups every candidate leads, and the threshold is exact.
#pragma once

#include "warp_rank.cuh"

namespace flashinfer_msa {

template <int kTopK, int kCapacityT, bool kHasManyRows>
struct CandidateList {
  static constexpr int kCapacity = kCapacityT;
  static constexpr int kPerLane = groups_per_lane(kTopK);
  static constexpr bool kIsRanked = kTopK <= kWarpSize;  // what is left in the end
  static constexpr int kRanked = ranked_per_lane(kTopK, kHasManyRows);
  static constexpr int kMost = kRanked * kWarpSize;  // that are ranked at once

  // From a candidate's score to its block, in bytes.
  static constexpr int kApart = sizeof(float) * (kCapacity + kMost);
  alignas(16) float score[kCapacity];
  alignas(16) float room[kMost];  // for leaders, and for what is ranked
  int32_t block[kCapacity];       // ascending

  // Keeps the best `wanted` of `count` candidates (ties to the lower block), in order; answers how
  // many are left. Called by one whole warp, which sees the list; ends synchronised.
  FLASHINFER_MSA_DEVICE int narrow(int count, int wanted) {
    if constexpr (kIsRanked) {
      count = emit(count, wanted, [&](int slot, float s, int32_t b) {
        score[slot] = s;
        block[slot] = b;
      });
      sync_warp();
    } else {
      while (count > wanted) count = narrow_once(count, wanted);
    }
    return count;
  }

  // Narrows to the best, and writes the row that they belong to. Called likewise.
  template <class Writer, class RowT>
  FLASHINFER_MSA_DEVICE void write_best(const Writer& writer, const RowT& row, int count,
                                        int wanted) {
    int32_t* output = writer.output + row.begin;
    int chosen = 0;
    if constexpr (kIsRanked) {
      chosen = emit(count, wanted, [&](int slot, float, int32_t b) { output[slot] = b; });
    } else {
      chosen = narrow(count, wanted);
      for (int i = lane_index(); i < chosen; i += kWarpSize) output[i] = block[i];
    }
    writer.frame(row, chosen, lane_index(), kWarpSize);
  }

  // Hands over the best (see emit_best). A list that is too long is narrowed first.
  template <class Emit>
  FLASHINFER_MSA_DEVICE int emit(int count, int wanted, const Emit& emit) {
    while (FLASHINFER_MSA_UNLIKELY(count > kMost)) count = narrow_once(count, wanted);
    const auto at = [](int j) { return j; };
    if (kRanked > 1 && FLASHINFER_MSA_UNLIKELY(count > kWarpSize)) {
      return emit_best<kRanked>(score, block, at, count, wanted, room, emit);
    }
    return emit_best<1>(score, block, at, count, wanted, room, emit);
  }

 private:
  // A round; of more than `wanted` candidates at least those stay.
  FLASHINFER_MSA_DEVICE int narrow_once(int count, int wanted) {
    const float threshold = find_threshold(count, wanted);
    const int above = count_exceeding(count, threshold);
    return keep(count, threshold, above < wanted ? wanted - above : 0);
  }

  FLASHINFER_MSA_DEVICE float find_threshold(int count, int wanted) {
    float best[kPerLane];
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kPerLane; ++g) best[g] = no_score();
    for (int base = 0; base < count; base += kPerLane * kWarpSize) {
      FLASHINFER_MSA_UNROLL
      for (int g = 0; g < kPerLane; ++g) {
        const int i = base + g * kWarpSize + lane_index();
        if (i < count) best[g] = larger(best[g], nan_as_infinity(score[i]));
      }
    }
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kPerLane; ++g) room[g * kWarpSize + lane_index()] = best[g];
    sync_warp();
    return kth_leader<kPerLane>(room, best, wanted);
  }

  FLASHINFER_MSA_DEVICE int count_exceeding(int count, float threshold) const {
    int above = 0;
    for (int i = lane_index(); i < count; i += kWarpSize)
      above += nan_as_infinity(score[i]) > threshold;
    return warp_sum(above);
  }

  // Keeps what exceeds the threshold and the first `ties` that equal it.
  FLASHINFER_MSA_DEVICE int keep(int count, float threshold, int ties) {
    int kept = 0;
    for (int base = 0; base < count; base += kWarpSize) {
      const int i = base + lane_index();
      const float s = i < count ? nan_as_infinity(score[i]) : no_score();
      const int32_t b = i < count ? block[i] : -1;
      const uint32_t equal = warp_ballot(i < count && s == threshold);
      const int ties_before = count_bits(equal & lower_lanes());
      const bool stays = s > threshold || (i < count && s == threshold && ties_before < ties);
      const uint32_t staying = warp_ballot(stays);
      sync_warp();  // all lanes have read before any writes: a vote alone does not order memory
      if (stays) {
        const int slot = kept + count_bits(staying & lower_lanes());
        score[slot] = s;
        block[slot] = b;
      }
      kept += count_bits(staying);
      ties -= count_bits(equal) < ties ? count_bits(equal) : ties;
    }
    sync_warp();
    return kept;
  }
};

}  // namespace flashinfer_msa
