// SPDX-License-Identifier: Apache-2.0
// Thread scope: a lane's own list of candidates in shared memory. Lists of a warp's lanes lie side
// by side, so that lanes at equal places touch different banks. No other thread looks at a list.
#pragma once

#include "sorting_network.cuh"
#include "tile_ring.cuh"

namespace flashinfer_msa {

template <int kCapacityT>
struct LaneListStorage {
  float score[kCapacityT * kWarpSize];
  int32_t block[kCapacityT * kWarpSize];
};

// kWidth: the most that will be wanted of it, a power of two. Blocks come in ascending order.
template <int kCapacityT, int kWidth>
struct LaneList {
  static constexpr int kCapacity = kCapacityT;
  static_assert(kCapacity % kWidth == 0, "sort() reads whole stretches");
  LaneListStorage<kCapacity>& storage;
  int end;                     // index past the last candidate: lane, lane + 32, ...
  float passing = no_score();  // a candidate's score must exceed it

  FLASHINFER_MSA_DEVICE explicit LaneList(LaneListStorage<kCapacity>& storage)
      : storage(storage), end(lane_index()) {
    FLASHINFER_MSA_UNROLL_BY(8)
    for (int i = lane_index(); i < kCapacity * kWarpSize; i += kWarpSize) {
      storage.score[i] = no_score();  // sort() reads whole stretches, filled or not
    }
  }

  FLASHINFER_MSA_DEVICE int count() const { return end / kWarpSize; }

  FLASHINFER_MSA_DEVICE void append(float score, int block) {
    storage.score[end] = score;
    storage.block[end] = block;
    end += kWarpSize;
  }

  // The kWidth largest scores, descending. All lanes of the warp call.
  FLASHINFER_MSA_DEVICE void sort(float (&top)[kWidth]) const {
    read(top, 0);
    sort_descending(top);
    for (int base = kWidth; warp_any(base < count()); base += kWidth) {
      float more[kWidth];
      read(more, base);
      sort_descending(more);
      merge_descending(top, [&](int i) { return more[i]; });
    }
  }

  // Cuts the list back to its best `wanted`, and perhaps some that equal the worst of them: no
  // more than kWidth in all. All lanes of the warp call.
  FLASHINFER_MSA_DEVICE void shrink(int wanted) {
    float top[kWidth];
    sort(top);
    const float threshold = pick(top, wanted - 1);
    cut(threshold, kCapacity);
    if (warp_any(count() > kWidth)) cut(threshold, ties_wanted(top, threshold, wanted));
    passing = larger(passing, threshold);  // later blocks lose ties
  }

  // Keeps what exceeds the threshold and the first `ties` that equal it.
  FLASHINFER_MSA_DEVICE void cut(float threshold, int ties) {
    int kept = lane_index();
    FLASHINFER_MSA_UNROLL_BY(4)
    for (int i = lane_index(); i < end; i += kWarpSize) {
      const float s = storage.score[i];
      const bool tie = s == threshold && ties > 0;
      if (s > threshold || tie) {
        storage.score[kept] = s;
        storage.block[kept] = storage.block[i];
        kept += kWarpSize;
      }
      ties -= tie;
    }
    for (int i = kept; i < end; i += kWarpSize) storage.score[i] = no_score();
    end = kept;
  }

  // How many scores equal to the threshold, the `wanted`-th of `top`, belong to the best `wanted`.
  static FLASHINFER_MSA_DEVICE int ties_wanted(const float (&top)[kWidth], float threshold,
                                               int wanted) {
    int ties = wanted;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) ties -= i < wanted && top[i] > threshold;
    return ties;
  }

 private:
  FLASHINFER_MSA_DEVICE void read(float (&v)[kWidth], int base) const {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) v[i] = storage.score[(base + i) * kWarpSize + lane_index()];
  }
};

}  // namespace flashinfer_msa
