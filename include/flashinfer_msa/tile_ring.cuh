// SPDX-License-Identifier: Apache-2.0
// Warp scope: brings scores of 32 rows to shared memory, 32 blocks at a time, while the warp works
// on earlier ones. One warp owns a ring; its lanes copy for each other and read their own row.
//
// A tile has the order of global memory: block by block where tokens lie together, row by row where
// blocks do. In the latter, chunks of 16 bytes change places by row, so that lanes that read the
// same chunk of their rows touch different banks.
#pragma once

#include "slice.cuh"

namespace flashinfer_msa {

// Copies one score, if it exists; like all copies it has arrived after wait_copies and sync_warp.
template <class Score>
FLASHINFER_MSA_DEVICE void copy_score(Score* to, const Score* from, bool exists) {
  if constexpr (sizeof(Score) == 4) {
    if (exists) copy_async<4>(to, from);
  } else {
    if (exists) *to = *from;
  }
}

template <class Score, int kTilesT>
struct TileRingStorage {
  alignas(16) Score tile[kTilesT][kTileBlocks * kWarpSize];
};

template <class Score, bool kBlocksTogether, int kTiles>
struct TileRing {
  static constexpr int kChunk = 16 / sizeof(Score);   // scores
  static constexpr int kChunks = kWarpSize / kChunk;  // of a line of the tile
  static constexpr int kLines = kWarpSize / kChunks;  // that a warp copies at once

  FLASHINFER_MSA_DEVICE TileRing(TileRingStorage<Score, kTiles>& storage, const Params& p, int head,
                                 int first_token)
      : storage_(storage),
        next_(static_cast<const Score*>(p.scores) + head * p.head_stride +
              first_token * p.token_stride + lane_offset(p)),
        line_stride_(kBlocksTogether ? p.token_stride : p.block_stride),
        tile_stride_(kTileBlocks * p.block_stride),
        rows_(p.tokens - first_token),
        blocks_(p.blocks),
        whole_(in_register(p.aligned && p.tokens - first_token >= kWarpSize)) {}

  // Starts to copy the next 32 blocks to tile `t`, which all lanes have finished reading.
  FLASHINFER_MSA_DEVICE void copy_next(int t) {
    if (whole_ && blocks_ >= kTileBlocks) {
      const Score* from = next_;
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kWarpSize; i += kLines, from += kLines * line_stride_) {
        copy_async<16>(&storage_.tile[t][index(i + line(), at())], from);
      }
    } else {
      copy_edge(t);
    }
    next_ += tile_stride_;
    blocks_ -= kTileBlocks;
  }

  // Leaves out so many tiles, or goes back.
  FLASHINFER_MSA_DEVICE void skip(int tiles) {
    next_ += tiles * tile_stride_;
    blocks_ -= tiles * kTileBlocks;
  }

  // The lane's scores of blocks [kChunk * chunk, kChunk * (chunk + 1)) of tile `t`.
  FLASHINFER_MSA_DEVICE void read(int t, int chunk, float (&v)[kChunk]) const {
    if constexpr (kBlocksTogether) {
      read_scores(&storage_.tile[t][index(lane_index(), chunk * kChunk)], v);
    } else {
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kChunk; ++i) v[i] = score(t, chunk * kChunk + i);
    }
  }

  // The lane's score of one block of tile `t`.
  FLASHINFER_MSA_DEVICE float score(int t, int block) const {
    return static_cast<float>(storage_.tile[t][kBlocksTogether ? index(lane_index(), block)
                                                               : index(block, lane_index())]);
  }

 private:
  TileRingStorage<Score, kTiles>& storage_;
  const Score* next_;    // the lane's first score of the next tile
  int64_t line_stride_;  // from a line of the tile to the next, in global memory
  int64_t tile_stride_;
  int rows_, blocks_;  // that exist, counted from the next tile's first
  int whole_;          // whether all rows exist, and their lines are aligned

  // Where the lane begins to copy.
  static FLASHINFER_MSA_DEVICE int line() { return lane_index() / kChunks; }
  static FLASHINFER_MSA_DEVICE int at() { return lane_index() % kChunks * kChunk; }
  static FLASHINFER_MSA_DEVICE int64_t lane_offset(const Params& p) {
    return line() * (kBlocksTogether ? p.token_stride : p.block_stride) + at();
  }

  // A tile that reaches past the rows or the blocks, or whose lines are not aligned: score by
  // score.
  FLASHINFER_MSA_DEVICE void copy_edge(int t) const {
    const int lines = kBlocksTogether ? rows_ : blocks_;
    const bool exists = lane_index() < (kBlocksTogether ? blocks_ : rows_);
    const Score* from = next_ - line() * line_stride_ - at() + lane_index();
    FLASHINFER_MSA_UNROLL_BY(8)
    for (int line = 0; line < kWarpSize; ++line, from += line_stride_) {
      copy_score(&storage_.tile[t][index(line, lane_index())], from, exists && line < lines);
    }
  }

  static FLASHINFER_MSA_DEVICE int index(int line, int at) {
    if constexpr (!kBlocksTogether) return line * kWarpSize + at;
    // A line has kChunks chunks; 128 bytes of banks hold 8 of them.
    const int turn = line / (8 / kChunks) % kChunks;
    return line * kWarpSize + ((at / kChunk) ^ turn) * kChunk + at % kChunk;
  }
};

}  // namespace flashinfer_msa
