// SPDX-License-Identifier: Apache-2.0
// Thread scope: the order of scores. IEEE comparison on floats does nearly all of it: -0.0 equals
// +0.0 and subnormals are ordinary. NaN counts as +inf, -inf is "no block".
#pragma once

#include "device.cuh"

namespace flashinfer_msa {

FLASHINFER_MSA_DEVICE float infinity() { return bits_float(0x7f800000u); }
FLASHINFER_MSA_DEVICE float no_score() { return bits_float(0xff800000u); }

FLASHINFER_MSA_DEVICE float least_score() { return bits_float(0xff7fffffu); }  // but -inf

// IEEE minNum drops a NaN in favour of the number: one instruction.
FLASHINFER_MSA_DEVICE float nan_as_infinity(float x) { return smaller(x, infinity()); }

// Bits whose order as a signed int is the order of the scores (-0.0 just below +0.0).
FLASHINFER_MSA_DEVICE int32_t ordered_bits(float x) {
  const int32_t bits = static_cast<int32_t>(float_bits(x));
  return bits ^ ((bits >> 31) & 0x7fffffff);
}
FLASHINFER_MSA_DEVICE float from_ordered_bits(int32_t key) {
  return bits_float(static_cast<uint32_t>(key ^ ((key >> 31) & 0x7fffffff)));
}

// The largest float below x, so that "greater than next_below(x)" means "at least x"; -inf for it.
FLASHINFER_MSA_DEVICE float next_below(float x) {
  const float below = from_ordered_bits(ordered_bits(x) - 1);  // NaN for -inf
  return larger(x == 0.0f ? bits_float(0x80000001u) : below, no_score());
}

// The least score that a candidate must reach: to reach x, or to exceed it (+inf for +inf). Never
// -inf or +0.0, so that `mark_if_short` may look at the sign of a difference.
FLASHINFER_MSA_DEVICE float least_reaching(float x) {
  return larger(x == 0.0f ? bits_float(0x80000000u) : x, least_score());
}
// The same for upper halves, of x and of scores.
FLASHINFER_MSA_DEVICE float least_half_reaching(float x) {
  return larger(x == 0.0f ? bits_float(0x80000000u) : x, bits_float(0xff7f0000u));
}
FLASHINFER_MSA_DEVICE float least_exceeding(float x) {
  const float above = from_ordered_bits(ordered_bits(x) + 1);  // NaN for +inf
  return smaller(x == 0.0f ? bits_float(0x00000001u) : above, infinity());
}

}  // namespace flashinfer_msa
