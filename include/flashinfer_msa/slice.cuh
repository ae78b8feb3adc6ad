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
  FLASHINFER_MSA_DEVICE WarpSlice(const RowT& row, int late, int wanted) {
    last = warp_max(late + row.end);
    tiles = tiles_for(last);
    first = warp_index() * tiles * kTileBlocks;
    begin = late + row.begin - first;
    end = wanted > 0 ? late + row.end - first : begin;
  }

  // Tiles of a slice, where there are so many blocks.
  static FLASHINFER_MSA_DEVICE int tiles_for(int blocks) {
    return (blocks + kWarps * kTileBlocks - 1) / (kWarps * kTileBlocks);
  }

  // The last tile that has so many blocks of the longest middle, 0 if there is none.
  FLASHINFER_MSA_DEVICE int last_tile_with(int blocks) const {
    const int whole = tiles * kTileBlocks, rest = last - first;
    const int most = rest < whole ? rest : whole;
    return most < blocks ? 0 : (most - blocks) / kTileBlocks;
  }

  // Which blocks of tile `t` lie in the lane's middle, a bit each, the first block's the highest.
  FLASHINFER_MSA_DEVICE uint32_t inside(int t) const {
    return bits_between(begin - t * kTileBlocks, end - t * kTileBlocks);
  }
};

}  // namespace flashinfer_msa
