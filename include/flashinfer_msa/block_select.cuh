// SPDX-License-Identifier: Apache-2.0
// Block scope: the best `wanted` of the scores that the threads of a block hold in registers.
//
//  1. Lanes are groups. The `wanted`-th best of the groups' leaders is a lower bound that at least
//     `wanted` scores reach; few do, commonly fewer than 32 for 16.
//  2. Each warp lists its scores that reach the bound, in order, in its own part of shared memory.
//  3. The first warp ranks what is listed by counting, and hands over the best, in order.
// A list too long for step 3 (ties, or a row whose best scores lie in few groups) is dealt anew to
// the threads until it is short: a round whose bound fewer than `wanted` scores exceed ends it, any
// other halves it at least, since what exceeds the bound lies in fewer than `wanted` groups.
#pragma once

#include "warp_rank.cuh"

namespace flashinfer_msa {

// Scores are in the order (warp, item, lane): that of their blocks.
template <int kTopK, int kWarps, int kItems, bool kHasManyRows = false>
struct BlockSelect {
  static constexpr int kPerLane = groups_per_lane(kTopK);
  static constexpr int kGroups = kPerLane * kWarpSize;
  static constexpr int kRanked = ranked_per_lane(kTopK, kHasManyRows);
  static constexpr int kMost = kRanked * kWarpSize;    // that are ranked at once
  static constexpr int kStretch = kItems * kWarpSize;  // scores of a warp
  static_assert(kItems % kPerLane == 0, "items are dealt evenly to groups");
  static_assert(kItems <= 32, "a bit an item");

  struct Storage {
    alignas(16) float leader[kWarps][kGroups];
    alignas(16) float all_leader[kWarps > 1 ? kWarps : 1][kGroups];  // of all warps; a copy each
    alignas(16) float finalist[kMost];
    alignas(16) float score[kWarps * kStretch];
    int32_t block[kWarps * kStretch];
    int32_t count[kWarps];  // of each warp's list
    int32_t exceeding[kWarps], reaching[kWarps];
  };
  Storage& smem;

  // All threads call. `block(i)` is the block of the thread's score[i]; -inf is never chosen. The
  // first warp calls emit(slot, score, block) for the best, slots ascending with blocks, and gets
  // their number.
  template <class BlockOf, class Emit>
  FLASHINFER_MSA_DEVICE int run(const float (&score)[kItems], const BlockOf& block, int wanted,
                                const Emit& emit) {
    if constexpr (kWarps == 1) pad(0);  // a barrier follows, in lower_bound
    const float bound = larger(lower_bound(score, wanted), least_score());
    int total = list(score, block, [&](int i) { return score[i] >= bound; });
    if (FLASHINFER_MSA_UNLIKELY(total > kMost)) {
      total = narrow(total, wanted);
      if constexpr (kWarps == 1) {
        pad(total);
        sync_warp();
      }
    }
    if (warp() != 0) return 0;
    const bool is_long = kRanked > kPerLane && FLASHINFER_MSA_UNLIKELY(total > kGroups);
    if constexpr (kWarps == 1) {
      return is_long ? emit_ready<kRanked>(smem.score, smem.block, total, wanted, emit)
                     : emit_ready<kPerLane>(smem.score, smem.block, total, wanted, emit);
    } else {
      const auto at = [&](int j) { return place(j); };
      return is_long ? emit_best<kRanked>(smem.score, smem.block, at, total, wanted, smem.finalist,
                                          emit)
                     : emit_best<kPerLane>(smem.score, smem.block, at, total, wanted, smem.finalist,
                                           emit);
    }
  }

 private:
  // One warp needs no barrier wider than itself.
  static FLASHINFER_MSA_DEVICE int warp() { return kWarps == 1 ? 0 : warp_index(); }
  static FLASHINFER_MSA_DEVICE void sync() { kWarps == 1 ? sync_warp() : sync_block(); }

  // The `wanted`-th largest leader, -inf if there are fewer. A group is a lane in all warps, so
  // that runs of high scores (a local window) spread over the groups.
  FLASHINFER_MSA_DEVICE float lower_bound(const float (&score)[kItems], int wanted) {
    const int w = warp(), lane = lane_index();
    float best[kPerLane];
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kPerLane; ++g) {
      best[g] = score[g];
      FLASHINFER_MSA_UNROLL
      for (int i = g + kPerLane; i < kItems; i += kPerLane) best[g] = larger(best[g], score[i]);
      smem.leader[w][g * kWarpSize + lane] = best[g];
    }
    sync();
    if constexpr (kWarps == 1) {
      return kth_leader<kPerLane>(smem.leader[0], best, wanted);
    } else {  // each warp works it out: cheaper than to wait for one
      FLASHINFER_MSA_UNROLL
      for (int g = 0; g < kPerLane; ++g) {
        FLASHINFER_MSA_UNROLL
        for (int other = 0; other < kWarps; ++other) {
          best[g] = larger(best[g], smem.leader[other][g * kWarpSize + lane]);
        }
        smem.all_leader[w][g * kWarpSize + lane] = best[g];
      }
      sync_warp();
      return kth_leader<kPerLane>(smem.all_leader[w], best, wanted);
    }
  }

  // Lists the thread's items that stay in its warp's part. Ends synchronised, with the length of
  // all lists.
  template <class BlockOf, class Stays>
  FLASHINFER_MSA_DEVICE int list(const float (&score)[kItems], const BlockOf& block,
                                 const Stays& is_staying) {
    const int first = warp() * kStretch;
    int end = first;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const bool stays = is_staying(i);
      const uint32_t lanes = warp_ballot(stays);
      if (stays) {
        const int to = end + count_bits(lanes & lower_lanes());
        smem.score[to] = score[i];
        smem.block[to] = block(i);
      }
      end += count_bits(lanes);
    }
    if (kWarps > 1 && lane_index() == 0) smem.count[warp()] = end - first;
    sync();
    return kWarps > 1 ? count_all(smem.count) : end;
  }

  // One warp: fills up what is ranked, from `total` scores on.
  FLASHINFER_MSA_DEVICE void pad(int total) {
    FLASHINFER_MSA_UNROLL
    for (int j = lane_index(); j < kMost; j += kWarpSize) {
      if (j >= total) smem.score[j] = no_score();
    }
  }

  static FLASHINFER_MSA_DEVICE int count_all(const int32_t (&count)[kWarps]) {
    int all = 0;
    FLASHINFER_MSA_UNROLL
    for (int w = 0; w < kWarps; ++w) all += count[w];
    return all;
  }
  static FLASHINFER_MSA_DEVICE int count_before(const int32_t (&count)[kWarps]) {
    int before = 0;
    FLASHINFER_MSA_UNROLL
    for (int w = 0; w < kWarps; ++w) before += w < warp() ? count[w] : 0;
    return before;
  }

  // Where the j-th score of all warps' lists lies.
  FLASHINFER_MSA_DEVICE int place(int j) const {
    int at = j, end = 0;
    FLASHINFER_MSA_UNROLL
    for (int w = 0; w + 1 < kWarps; ++w) {
      end += smem.count[w];
      if (j >= end) at = (w + 1) * kStretch + j - end;
    }
    return at;
  }

  // Cuts the lists back until step 3 can take them; all threads call and get the new total.
  FLASHINFER_MSA_DEVICE int narrow(int total, int wanted) {
    while (true) {
      float score[kItems];
      int32_t block[kItems];
      // As many for each of a lane's groups: with fewer groups than `wanted`, no bound would end
      // it.
      const int items = (total + kWarps * kGroups - 1) / (kWarps * kGroups) * kPerLane;
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kItems; ++i) {
        const int j = (warp() * items + i) * kWarpSize + lane_index();
        const bool exists = i < items && j < total;
        const int at = place(exists ? j : 0);
        score[i] = exists ? smem.score[at] : no_score();
        block[i] = smem.block[at];
      }
      const float bound = lower_bound(score, wanted);  // a barrier in it: all have read
      uint32_t above = 0, equal = 0;
      int exceeding = 0, reaching = 0;  // of the warp
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kItems; ++i) {
        above |= bit_if(score[i] > bound, i);
        equal |= bit_if(score[i] == bound, i);
      }
      exceeding = warp_sum(count_bits(above));
      reaching = warp_sum(count_bits(equal));
      if (lane_index() == 0) {
        smem.exceeding[warp()] = exceeding;
        smem.reaching[warp()] = reaching;
      }
      sync();
      int ties = wanted - count_all(smem.exceeding);  // that the answer needs
      if (ties > 0) {
        ties -= count_before(smem.reaching);
        FLASHINFER_MSA_UNROLL
        for (int i = 0; i < kItems; ++i) {
          const uint32_t lanes = warp_ballot(equal >> i & 1);
          if (count_bits(lanes & lower_lanes()) < ties) above |= equal & 1u << i;
          ties -= count_bits(lanes);
        }
      }
      total = list(
          score, [&](int i) { return block[i]; }, [&](int i) { return (above >> i & 1) != 0; });
      if (total <= kMost) return total;
    }
  }
};

}  // namespace flashinfer_msa
