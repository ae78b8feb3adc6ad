// SPDX-License-Identifier: Apache-2.0
// Lane scope: the blocks of its row that one lane of several looks at, a slice of them. Slices are
// the same for all rows of the thread block, and in ascending order from warp to warp.
#pragma once

#include "row.cuh"

namespace flashinfer_msa {

constexpr int kTileBlocks = 32;

// kSlices: of a row, in all.
template <int kSlices>
struct LaneSlice {
  int last;        // end of the longest middle
  int tiles;       // of a slice
  int first;       // its first block
  int begin, end;  // of the lane's middle, counted from there

  template <class RowT>
  FLASHINFER_MSA_DEVICE LaneSlice(const RowT& row, int index, int late, int wanted) {
    last = warp_max(late + row.end);
    tiles = tiles_for(last);
    first = index * tiles * kTileBlocks;
    begin = late + row.begin - first;
    end = wanted > 0 ? late + row.end - first : begin;
  }

  // Tiles of a slice, where there are so many blocks.
  static FLASHINFER_MSA_DEVICE int tiles_for(int blocks) {
    return (blocks + kSlices * kTileBlocks - 1) / (kSlices * kTileBlocks);
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
