// SPDX-License-Identifier: Apache-2.0
// Thread scope: a lane's own list of candidates in shared memory. Lists of a warp's lanes lie side
// by side, so that lanes at equal places touch different banks. No other thread looks at a list.
//
// Loops take kStep candidates at once, without branches: their reads wait together.
#pragma once

#include "score_pair.cuh"
#include "tile_ring.cuh"

namespace flashinfer_msa {

struct alignas(8) Candidate {
  float score;
  int32_t block;
};

template <int kCapacity>
struct LaneListStorage {
  Candidate at[kCapacity * kWarpSize];
};

// kWidth: the most that will be wanted of it, a power of two. Blocks come in ascending order.
template <int kCapacityT, int kWidth>
struct LaneList {
  static constexpr int kCapacity = kCapacityT;
  static constexpr int kStep = 4;
  using Storage = LaneListStorage<kCapacity>;
  static_assert(kCapacity % kWidth == 0, "sort() reads whole stretches");
  static_assert(kCapacity % kStep == 0, "and compact() whole steps");
  Storage& storage;
  int end;                      // index past the last candidate: lane, lane + 32, ...
  float least = least_score();  // a candidate's score must reach it
  bool closed = false;          // none passes any more: it would have to exceed +inf
  bool differs = true;          // upper halves tell scores apart well enough, for all lanes so far

  FLASHINFER_MSA_DEVICE explicit LaneList(Storage& storage) : storage(storage), end(lane_index()) {
    FLASHINFER_MSA_UNROLL_BY(8)
    for (int i = lane_index(); i < kCapacity * kWarpSize; i += kWarpSize) {
      storage.at[i].score = no_score();  // whole stretches are read, filled or not
    }
  }

  FLASHINFER_MSA_DEVICE int count() const { return end / kWarpSize; }

  FLASHINFER_MSA_DEVICE void append_if(bool is_one, float score, int block) {
    put_if(is_one, end, {score, block});
  }

  // From now on only what reaches the threshold passes, or only what exceeds it.
  FLASHINFER_MSA_DEVICE void raise_to(float threshold) {
    least = larger(least, least_reaching(threshold));
  }
  FLASHINFER_MSA_DEVICE void raise_above(float threshold) {
    least = larger(least, least_exceeding(threshold));
    closed = closed || threshold == infinity();
  }

  // The kWidth largest scores, descending. All lanes of the warp call.
  FLASHINFER_MSA_DEVICE void sort(float (&top)[kWidth]) const {
    read(top, 0);
    sort_descending(top);
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int base = kWidth; warp_any(base < count()); base += kWidth) {
      float more[kWidth];
      read(more, base);
      sort_descending(more);
      merge_descending(top, [&](int i) { return more[i]; });
    }
  }

  // Makes room for kStep more: cuts the list back to its best `wanted`, and perhaps a few that
  // come near the worst of them. All lanes of the warp call.
  FLASHINFER_MSA_DEVICE void make_room(int wanted) {
    if (!warp_any(count() > wanted + kWidth - kStep)) return;
    float threshold = no_score();
    if (differs) {
      threshold = find_bound(wanted);
      keep_reaching(threshold);
      differs = !warp_any(count() > wanted + kStep);
    }
    if (FLASHINFER_MSA_UNLIKELY(!differs)) {
      float best[kWidth];
      threshold = find_threshold(wanted, best);
      keep_reaching(threshold);
      if (warp_any(count() > wanted + kStep)) {
        int ties = ties_wanted(best, threshold, wanted);
        compact([&](float score) { return is_best(score, threshold, ties); });
      }
    }
    raise_above(threshold);  // later blocks lose ties
  }

  // The `wanted`-th largest score, -inf if there are fewer; leaves the kWidth largest in `best`, in
  // no order, +inf for each that is wanted less than kWidth.
  FLASHINFER_MSA_DEVICE float find_threshold(int wanted, float (&best)[kWidth]) const {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) best[i] = i < wanted ? score(i) : infinity();
    sort_descending(best);
    if (!warp_any(count() > wanted)) return best[kWidth - 1];
    float more[kWidth];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) more[i] = score(wanted + i);
    sort_descending(more);
    return keep_largest(best, more);
  }

  // What at least `wanted` candidates reach, and commonly few more; -inf if there are fewer.
  FLASHINFER_MSA_DEVICE float find_bound(int wanted) const {
    HalfPair pair[kWidth];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      pair[i] = upper_halves(i < wanted ? score(i) : infinity(), score(wanted + i));
    }
    return bound_of_pairs(pair);
  }

  FLASHINFER_MSA_DEVICE void keep_reaching(float threshold) {
    const float least = larger(threshold, least_score());
    compact([&](float score) { return score >= least; });
  }

  // Calls visit(block) in order for those that exceed the threshold and the first `ties` that equal
  // it.
  template <class Visit>
  FLASHINFER_MSA_DEVICE void visit_best(float threshold, int ties, const Visit& visit) const {
    if (threshold == no_score()) ties = 0;  // past the end lies -inf
    for_each_step([&](int, const Candidate(&candidate)[kStep]) {
      FLASHINFER_MSA_UNROLL
      for (int j = 0; j < kStep; ++j) {
        if (is_best(candidate[j].score, threshold, ties)) visit(candidate[j].block);
      }
    });
  }

  // How many scores equal to the threshold belong to the best `wanted`, after find_threshold.
  static FLASHINFER_MSA_DEVICE int ties_wanted(const float (&best)[kWidth], float threshold,
                                               int wanted) {
    if (threshold == no_score()) return 0;
    int ties = threshold < infinity() ? kWidth : wanted;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) ties -= best[i] > threshold;
    return ties;
  }

 private:
  static FLASHINFER_MSA_DEVICE bool is_best(float score, float threshold, int& ties) {
    const bool equal = score == threshold;
    const bool best = score > threshold || (equal && ties > 0);
    ties -= equal;
    return best;
  }

  FLASHINFER_MSA_DEVICE void put_if(bool is_one, int& at, Candidate candidate) const {
    if (is_one) {
      storage.at[at] = candidate;
      at += kWarpSize;
    }
  }

  FLASHINFER_MSA_DEVICE float score(int i) const {
    return storage.at[i * kWarpSize + lane_index()].score;
  }

  FLASHINFER_MSA_DEVICE void read(float (&v)[kWidth], int base) const {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kWidth; ++i) v[i] = score(base + i);
  }

  // Calls visit(place, candidates) for each step of the list; what is past the end scores -inf.
  template <class Visit>
  FLASHINFER_MSA_DEVICE void for_each_step(const Visit& visit) const {
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int i = lane_index(); i < end; i += kStep * kWarpSize) {
      Candidate candidate[kStep];
      FLASHINFER_MSA_UNROLL
      for (int j = 0; j < kStep; ++j) candidate[j] = storage.at[i + j * kWarpSize];
      visit(i, candidate);
    }
  }

  // Keeps those of which stays(score) holds, asked in order.
  template <class Stays>
  FLASHINFER_MSA_DEVICE void compact(const Stays& stays) {
    int kept = lane_index();
    for_each_step([&](int at, const Candidate(&candidate)[kStep]) {
      FLASHINFER_MSA_UNROLL
      for (int j = 0; j < kStep; ++j) storage.at[at + j * kWarpSize].score = no_score();
      FLASHINFER_MSA_UNROLL
      for (int j = 0; j < kStep; ++j) put_if(stays(candidate[j].score), kept, candidate[j]);
    });
    end = kept;
  }
};

}  // namespace flashinfer_msa
