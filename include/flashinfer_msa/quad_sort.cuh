// SPDX-License-Identifier: Apache-2.0
// Warp scope: sorting networks over the registers of four lanes, a quad, which share a row. Eight
// rows go side by side: lane = row + 8 * member.
#pragma once

#include "row_group.cuh"
#include "sorting_network.cuh"

namespace flashinfer_msa {

using Quads = RowGroup<8>;
static_assert(Quads::kMembers == 4, "networks below are for four lanes a row");

// Of the quad's 4 * kHalf scores, leaves the 2 * kHalf largest in members 0 and 1 and, mirrored, in
// 3 and 2; in no order. Members 0 and 1 hold scores that fall and then rise, 1's from the last to
// the first, or the like turned round; and so do 2 and 3. So do then 0 and 2, and 1 and 3, for a
// next round of quads whose members are twice as far apart.
template <class Group = Quads, int kApart = 1, int kHalf>
FLASHINFER_MSA_DEVICE void merge_top(float (&v)[kHalf]) {
  using MergeT = MergeNetwork<kHalf>;
  const bool is_first = (Group::member() & kApart) == 0;
  float theirs[kHalf];
  FLASHINFER_MSA_UNROLL
  for (int i = 0; i < kHalf; ++i) theirs[i] = Group::exchange(v[kHalf - 1 - i], kApart);
  FLASHINFER_MSA_UNROLL
  for (int i = 0; i < kHalf; ++i) {
    v[i] = is_first ? larger(v[i], theirs[i]) : smaller(v[i], theirs[i]);
  }
  apply<MergeT>(v, std::make_integer_sequence<int, MergeT::kNetwork.count>{});
  FLASHINFER_MSA_UNROLL
  for (int i = 0; i < kHalf; ++i) theirs[i] = Group::exchange(v[kHalf - 1 - i], 3 * kApart);
  FLASHINFER_MSA_UNROLL
  for (int i = 0; i < kHalf; ++i) v[i] = larger(v[i], theirs[i]);
}

// The same, whatever the order of the scores.
template <int kHalf>
FLASHINFER_MSA_DEVICE void keep_top(float (&v)[kHalf]) {
  sort_descending(v);
  merge_top(v);
}

// The smallest score of members 0 and 1, and of 2 and 3, of what keep_top() left.
template <class Group = Quads, int kApart = 1, int kHalf>
FLASHINFER_MSA_DEVICE float least_of_pair(const float (&v)[kHalf]) {
  float least = v[0];
  FLASHINFER_MSA_UNROLL
  for (int i = 1; i < kHalf; ++i) least = smaller(least, v[i]);
  return smaller(least, Group::exchange(least, kApart));
}

}  // namespace flashinfer_msa
