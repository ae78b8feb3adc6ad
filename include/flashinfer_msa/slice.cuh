// SPDX-License-Identifier: Apache-2.0
// Warp scope: the blocks of 32 rows that one warp of several looks at. Slices are the same for all
// rows of the thread block, so that the warps' blocks are in ascending order.
#pragma once

#include "row.cuh"

namespace flashinfer_msa {

constexpr int kTileBlocks = 32;

template <int kWarps>
struct WarpSlice {
  int last;        // end of the longest middle
  int tiles;       // of a slice
  int first;       // its first block
  int begin, end;  // of the lane's middle, counted from there

  template <class RowT>
  FLASHINFER_MSA_DEVICE WarpSlice(const RowT& row, int wanted) {
    last = warp_max(row.end);
    tiles = (last + kWarps * kTileBlocks - 1) / (kWarps * kTileBlocks);
    first = warp_index() * tiles * kTileBlocks;
    begin = row.begin - first;
    end = wanted > 0 ? row.end - first : begin;
  }

  // Which blocks of tile `t` lie in the lane's middle, a bit each.
  FLASHINFER_MSA_DEVICE uint32_t inside(int t) const {
    return bits_below(end - t * kTileBlocks) & ~bits_below(begin - t * kTileBlocks);
  }
  static FLASHINFER_MSA_DEVICE uint32_t bits_below(int n) {
    return n <= 0 ? 0u : n >= 32 ? ~0u : (1u << n) - 1u;
  }
};

}  // namespace flashinfer_msa
