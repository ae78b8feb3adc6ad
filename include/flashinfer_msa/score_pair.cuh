// SPDX-License-Identifier: Apache-2.0
// Thread scope: a lower bound from the upper halves of scores alone. A network over pairs of halves
// sorts two lists for the price of one, and nothing depends on how near the bound comes.
#pragma once

#include "sorting_network.cuh"

namespace flashinfer_msa {

// The kSize-th largest of 2 * kSize scores, of which each pair has two, rounded down: at least as
// many reach it. There must be no NaN. Leaves both lists descending.
template <int kSize>
FLASHINFER_MSA_DEVICE float bound_of_pairs(HalfPair (&pair)[kSize]) {
  sort_descending(pair);
  // Of two descending lists, the i-th of one and the i-th but last of the other hold one of the
  // best.
  HalfPair least = larger(pair[0], swapped(pair[kSize - 1]));
  FLASHINFER_MSA_UNROLL
  for (int i = 1; i < kSize / 2; ++i) {
    least = smaller(least, larger(pair[i], swapped(pair[kSize - 1 - i])));
  }
  const uint32_t bits = smaller(least, swapped(least)).bits << 16;
  // What was cut off had made a negative score less.
  const bool is_negative = bits >> 31 && bits != float_bits(no_score());
  return bits_float(is_negative ? bits | 0xffffu : bits);
}

// Whether too many scores are alike in their upper halves: a quarter more than kSize reach the
// bound.
template <int kSize>
FLASHINFER_MSA_DEVICE bool is_crowded(const HalfPair (&sorted)[kSize], float bound) {
  const HalfPair one = sorted[kSize / 2 + kSize / 8 - 1];
  const float half = bits_float(float_bits(bound) & 0xffff0000u);
  return bound > no_score() && smaller(lower_of(one), upper_of(one)) >= half;
}

}  // namespace flashinfer_msa
