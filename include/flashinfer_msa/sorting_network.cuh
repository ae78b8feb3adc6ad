// SPDX-License-Identifier: Apache-2.0
// Thread scope: sorting networks over registers, of scores or pairs of halves. They move scores
// alone: ids are recovered later by comparing with the threshold, which halves the work of a
// network that carries both.
//
// A network is a list of comparators worked out by the compiler. Its indices are constants from the
// start, not after unrolling: otherwise the array would already have been sent to memory.
#pragma once

#include <utility>

#include "score.cuh"

namespace flashinfer_msa {

struct Network {
  static constexpr int kMaxComparators = 256;
  int count = 0;
  int high[kMaxComparators] = {};  // where the larger score goes
  int low[kMaxComparators] = {};

  constexpr void add(int to_high, int to_low) {
    high[count] = to_high;
    low[count] = to_low;
    ++count;
  }
};

// Batcher's odd-even merge sort of `size` scores, a power of two.
constexpr Network odd_even_merge_sort(int size) {
  Network network;
  for (int run = 1; run < size; run *= 2) {
    for (int gap = run; gap >= 1; gap /= 2) {
      for (int i = gap % run; i + gap < size; i += 2 * gap) {
        for (int j = i; j < i + gap && j + gap < size; ++j) {
          if (j / (2 * run) == (j + gap) / (2 * run)) network.add(j, j + gap);
        }
      }
    }
  }
  return network;
}

// Sorts `size` scores that rise and then fall, or fall and then rise.
constexpr Network bitonic_merge(int size) {
  Network network;
  for (int gap = size / 2; gap >= 1; gap /= 2) {
    for (int i = 0; i < size; ++i) {
      if ((i & gap) == 0) network.add(i, i + gap);
    }
  }
  return network;
}

template <int kSize>
struct SortNetwork {
  static constexpr Network kNetwork = odd_even_merge_sort(kSize);
};
template <int kSize>
struct MergeNetwork {
  static constexpr Network kNetwork = bitonic_merge(kSize);
};

template <int kHigh, int kLow, class T, int kSize>
FLASHINFER_MSA_DEVICE void compare_exchange(T (&v)[kSize]) {
  const T high = larger(v[kHigh], v[kLow]);
  v[kLow] = smaller(v[kHigh], v[kLow]);
  v[kHigh] = high;
}

template <class NetworkT, class T, int kSize, int... kIndex>
FLASHINFER_MSA_DEVICE void apply(T (&v)[kSize], std::integer_sequence<int, kIndex...>) {
  (compare_exchange<NetworkT::kNetwork.high[kIndex], NetworkT::kNetwork.low[kIndex]>(v), ...);
}

template <class T, int kSize>
FLASHINFER_MSA_DEVICE void sort_descending(T (&v)[kSize]) {
  using NetworkT = SortNetwork<kSize>;
  apply<NetworkT>(v, std::make_integer_sequence<int, NetworkT::kNetwork.count>{});
}

// Of two descending lists, leaves the kSize largest scores in `a`, descending. `b(i)` answers the
// i-th of the other list, which may lie in shared memory.
template <int kSize, class List>
FLASHINFER_MSA_DEVICE void merge_descending(float (&a)[kSize], const List& b) {
  using NetworkT = MergeNetwork<kSize>;
  FLASHINFER_MSA_UNROLL
  for (int i = 0; i < kSize; ++i) a[i] = larger(a[i], b(kSize - 1 - i));
  apply<NetworkT>(a, std::make_integer_sequence<int, NetworkT::kNetwork.count>{});
}

// Of two descending lists, leaves the kSize largest scores in `a`, in no order, and answers the
// least of them.
template <int kSize>
FLASHINFER_MSA_DEVICE float keep_largest(float (&a)[kSize], const float (&b)[kSize]) {
  float least = infinity();
  FLASHINFER_MSA_UNROLL
  for (int i = 0; i < kSize; ++i) {
    a[i] = larger(a[i], b[kSize - 1 - i]);
    least = smaller(least, a[i]);
  }
  return least;
}

}  // namespace flashinfer_msa
