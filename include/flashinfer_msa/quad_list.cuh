// SPDX-License-Identifier: Apache-2.0
// Warp scope: eight rows' lists of candidates in shared memory, each kept by its quad of lanes.
//
// A network finds the kWidth-th largest score of a list. Fewer than that may be wanted: as many
// scores of +inf as are missing join the list, and the network finds the right one.
#pragma once

#include "quad_sort.cuh"

namespace flashinfer_msa {

constexpr int network_width(int topk) { return topk <= 16 ? 16 : topk <= 32 ? 32 : 64; }

template <int kCapacityT, int kWidthT>
struct QuadList {
  static constexpr int kCapacity = kCapacityT;
  static constexpr int kWidth = kWidthT;
  static constexpr int kHalf = kWidth / 2;                // scores a lane brings to the network
  static constexpr int kGroup = Quads::kMembers * kHalf;  // scores that the network takes at once
  static constexpr int kLine = kCapacity + 1;             // so that rows start at different banks
  static_assert(kLine % 32 == 1, "groups are read whole, without bank conflicts");

  struct Storage {
    float score[Quads::kRows][kLine];
    int32_t block[Quads::kRows][kLine];  // ascending
  };
  using Cursor = ListCursor<sizeof(float) * Quads::kRows * kLine>;

  Storage& storage;
  int total = 0;  // of the row's list

  FLASHINFER_MSA_DEVICE Cursor cursor(int at) const {
    return Cursor(&storage.score[Quads::row()][total + at]);
  }

  // The lane's share of the group at `base`, -inf past the end.
  FLASHINFER_MSA_DEVICE void read(int base, float (&s)[kHalf]) const {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      const int at = base + Quads::member() * kHalf + i;
      s[i] = at < total ? nan_as_infinity(storage.score[Quads::row()][at]) : no_score();
    }
  }

  // Calls visit(kept, block, score) in order for the best `wanted`: those that exceed the threshold
  // and the first that equal it; `kept` counts them. Answers how many, and the threshold. What is
  // visited was read before, so that the list may be written up to `kept`.
  template <class Visit>
  FLASHINFER_MSA_DEVICE int visit_best(int wanted, float& threshold, const Visit& visit) const {
    float s[kHalf];
    threshold = find_threshold(wanted, s);
    const float least = larger(threshold, least_score());
    const uint32_t reaching = reach(s, least);
    int kept = 0;
    const int before = Quads::sum_before(count_bits(reaching), kept);
    const bool is_long = warp_any(total > kGroup);
    int all = kept;
    if (is_long) all += count_after_first(least);
    if (FLASHINFER_MSA_UNLIKELY(warp_any(all > wanted))) {
      return visit_best_of_ties(threshold, wanted, visit);
    }
    visit_group(0, s, reaching, before, visit);
    for (int base = kGroup; is_long && warp_any(base < total); base += kGroup) {
      read(base, s);
      const uint32_t more = reach(s, least);
      int here = 0;
      const int slot = kept + Quads::sum_before(count_bits(more), here);
      visit_group(base, s, more, slot, visit);
      kept += here;
    }
    return all;
  }

  // Cuts the lists back to their best `wanted`. Answers what a later block's score must exceed,
  // since it loses ties; -inf if there are fewer. The warp sees the lists after its next barrier.
  FLASHINFER_MSA_DEVICE float shrink(int wanted) {
    float least = no_score();
    total = visit_best(wanted, least, [&](int kept, int32_t block, float s) {
      storage.score[Quads::row()][kept] = s;
      storage.block[Quads::row()][kept] = block;
    });
    return least;
  }

 private:
  // The `wanted`-th largest score, -inf if there are fewer. The warp must see the lists. Leaves the
  // lane's share of the first group in `s`.
  FLASHINFER_MSA_DEVICE float find_threshold(int wanted, float (&s)[kHalf]) const {
    const int missing = kWidth - wanted;
    read(0, s);
    float top[kHalf];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kHalf; ++i) top[i] = s[i];
    // The last of the first group give way to +inf, and are read with the next.
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      if (Quads::member() * kHalf + i >= kGroup - missing) top[i] = infinity();
    }
    keep_top(top);
    for (int base = kGroup - missing; warp_any(base < total); base += kWidth) {
      if (Quads::member() >= Quads::kMembers / 2) read(base - kWidth, top);
      keep_top(top);
    }
    return least_of_pair(top);
  }

  // Which of the lane's scores reach `least`, a bit each.
  static FLASHINFER_MSA_DEVICE uint32_t reach(const float (&s)[kHalf], float least) {
    uint32_t reaching = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kHalf; ++i) reaching |= bit_if(s[i] >= least, i);
    return reaching;
  }

  // How many scores of the row reach `least`, the first group's left out.
  FLASHINFER_MSA_DEVICE int count_after_first(float least) const {
    int mine = 0, all = 0;
    for (int base = kGroup; warp_any(base < total); base += kGroup) {
      float s[kHalf];
      read(base, s);
      mine += count_bits(reach(s, least));
    }
    Quads::sum_before(mine, all);
    return all;
  }

  template <class Visit>
  FLASHINFER_MSA_DEVICE void visit_group(int base, const float (&s)[kHalf], uint32_t chosen,
                                         int slot, const Visit& visit) const {
    int32_t block[kHalf];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kHalf; ++i) block[i] = read_block(base, i);
    sync_warp();
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kHalf; ++i) {
      if (chosen >> i & 1) visit(slot++, block[i], s[i]);
    }
  }

  FLASHINFER_MSA_DEVICE int32_t read_block(int base, int i) const {
    const int at = base + Quads::member() * kHalf + i;
    return storage.block[Quads::row()][kCapacity % kGroup == 0 || at < kCapacity ? at : 0];
  }

  // The same for lists of any length, with more scores that equal the threshold
  // than there is room for.
  template <class Visit>
  FLASHINFER_MSA_DEVICE int visit_best_of_ties(float threshold, int wanted,
                                               const Visit& visit) const {
    int above = 0, exceeding = 0;
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int i = Quads::member(); i < total; i += Quads::kMembers) {
      above += nan_as_infinity(storage.score[Quads::row()][i]) > threshold;
    }
    Quads::sum_before(above, exceeding);
    const int ties = wanted - exceeding;
    int kept_before = 0,
        equal_before = 0;  // the latter not above `ties` where that matters
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int base = 0; warp_any(base < total); base += kGroup) {
      float s[kHalf];
      int32_t block[kHalf];
      read(base, s);
      int here = 0;  // above the threshold, and equal to it << 16
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kHalf; ++i) {
        block[i] = read_block(base, i);
        here += s[i] > threshold ? 1 : s[i] == threshold && s[i] >= least_score() ? 1 << 16 : 0;
      }
      int all = 0;
      const int before = Quads::sum_before(here, all);
      int over = kept_before + (before & 0xffff), equal = equal_before + (before >> 16);
      sync_warp();
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kHalf; ++i) {
        const bool is_equal = s[i] == threshold && s[i] >= least_score();
        if (s[i] > threshold || (is_equal && equal < ties)) {
          visit(over + (equal < ties ? equal : ties), block[i], s[i]);
        }
        over += s[i] > threshold;
        equal += is_equal;
      }
      kept_before += all & 0xffff;
      equal_before += all >> 16;
    }
    return kept_before + (equal_before < ties ? equal_before : ties);
  }
};

}  // namespace flashinfer_msa
