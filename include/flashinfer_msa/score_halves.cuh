// SPDX-License-Identifier: Apache-2.0
// Thread scope: the upper halves of 32 scores in 16 registers. In their order -0.0 and +0.0 are
// one; there is no NaN.
#pragma once

#include "score.cuh"

namespace flashinfer_msa {

struct ScoreHalves {
  static constexpr int kItems = 32;
  static constexpr int kPairs = kItems / 2;
  static constexpr int kBytes = 4, kBits = 8;  // of a word that has a bit an item
  // Pairs i and i + kBits hold the items of one bit of all four bytes.
  HalfPair pair[kPairs];

  FLASHINFER_MSA_DEVICE void take(const float (&score)[kItems]) {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kBits; ++i) {
      pair[i] = upper_halves(score[i], score[kBits + i]);
      pair[kBits + i] = upper_halves(score[2 * kBits + i], score[3 * kBits + i]);
    }
  }

  // Which items reach `least`, which is neither -inf nor +0.0: a bit each, the first's the highest.
  FLASHINFER_MSA_DEVICE uint32_t reaching(HalfPair least) const {
    uint32_t failing = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kBits; ++i) {
      failing |= bytes_if_short(pair[i], pair[kBits + i], least) & (0x80808080u >> i);
    }
    return ~failing;
  }
};

}  // namespace flashinfer_msa
