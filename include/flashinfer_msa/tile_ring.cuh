// SPDX-License-Identifier: Apache-2.0
// Warp scope: brings scores of 32 rows to shared memory, 32 blocks at a time, while the warp works
// on earlier ones. One warp owns a ring; its lanes copy for each other and read their own row.
//
// A tile has the order of global memory: a line a block where tokens lie together, a line a row
// where blocks do. In the latter, chunks of 16 bytes change places by row, so that lanes that read
// the same chunk of their rows touch different banks.
//
// Copies take whole chunks, and so begin up to a chunk before a line that does not start with one
// (an odd number of tokens). What that brings with a line of tokens is skipped by its readers; a
// row's blocks come later by it, see blocks_late. Nothing but the call's own scores is touched.
#pragma once

#include <climits>

#include "slice.cuh"

namespace flashinfer_msa {

// Where one of several scores `stride` apart goes, if it exists; `early`: how far it lies before.
template <class Score>
struct ScorePlace {
  Score* to;
  bool exists;
  int early;
};

// Copies kCount scores one by one, the i-th to place(i). Like all copies they have arrived after
// wait_copies and sync_warp.
template <int kCount, class Score, class PlaceOf>
FLASHINFER_MSA_DEVICE void copy_scores(const Score* from, int64_t stride, const PlaceOf& place) {
  if constexpr (sizeof(Score) == 4) {
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kCount; ++i, from += stride) {
      if (place(i).exists) copy_async<4>(place(i).to, from - place(i).early);
    }
  } else {  // no copy of two bytes runs on by itself: all of them wait together
    Score score[kCount];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kCount; ++i, from += stride) {
      if (place(i).exists) score[i] = *(from - place(i).early);
    }
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kCount; ++i) {
      if (place(i).exists) *place(i).to = score[i];
    }
  }
}

// kAnyStart: whether there is room for lines of tokens that do not start with a chunk, which are
// copied score by score without it.
template <class Score, bool kBlocksTogether, int kTilesT, bool kAnyStart>
struct TileRingStorage {
  static constexpr int kChunk = 16 / sizeof(Score);  // scores
  static constexpr int kLine = kWarpSize + (kAnyStart && !kBlocksTogether ? kChunk : 0);
  alignas(16) Score tile[kTilesT][kTileBlocks * kLine];
};

template <class Score, bool kBlocksTogether, int kTiles, bool kAnyStart>
struct TileRing {
  using Storage = TileRingStorage<Score, kBlocksTogether, kTiles, kAnyStart>;
  static constexpr int kChunk = Storage::kChunk;
  static constexpr int kChunks = kWarpSize / kChunk;  // of a line of the tile
  static constexpr int kLines = kWarpSize / kChunks;  // that a warp copies at once
  static constexpr int kInChunk = kChunk - 1;         // bits of a place in one
  static_assert(kLines % kChunk == 0, "those of a lane start alike");

  FLASHINFER_MSA_DEVICE TileRing(Storage& storage, const Params& p, int head, int first_token)
      : storage_(storage),
        line_stride_(kBlocksTogether ? p.token_stride : p.block_stride),
        tile_stride_(kTileBlocks * p.block_stride),
        rows_(p.tokens - first_token),
        all_blocks_(p.blocks),
        blocks_(p.blocks),
        aligned_(in_register(p.aligned)) {
    const Score* first =
        static_cast<const Score*>(p.scores) + head * p.head_stride + first_token * p.token_stride;
    first_early_ = static_cast<int>(reinterpret_cast<uintptr_t>(first) / sizeof(Score)) & kInChunk;
    next_ = first + line() * line_stride_ - early(line()) + at();
    least_blocks_ = least_blocks(p, head, first_token);
  }

  // The most blocks by which rows come late.
  static FLASHINFER_MSA_DEVICE int most_late(const Params& p) {
    return kBlocksTogether && !p.aligned ? kChunk - 1 : 0;
  }
  // Places before the first block of the lane's row, in its first tile.
  FLASHINFER_MSA_DEVICE int blocks_late() const {
    return kBlocksTogether ? early(lane_index()) : 0;
  }

  // Starts to copy the next 32 blocks to tile `t`, which all lanes have finished reading.
  FLASHINFER_MSA_DEVICE void copy_next(int t) {
    if (blocks_ >= least_blocks_) {
      const Score* from = next_;
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kWarpSize; i += kLines, from += kLines * line_stride_) {
        copy_async<16>(&storage_.tile[t][index(i + line(), at())], from);
      }
      if (!kBlocksTogether && !aligned_) {  // a chunk more of each line
        copy_async<16>(&storage_.tile[t][index(lane_index(), kWarpSize)],
                       start_of(lane_index()) - early(lane_index()) + kWarpSize);
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
    return static_cast<float>(
        storage_.tile[t][kBlocksTogether ? index(lane_index(), block)
                                         : index(block, early(block) + lane_index())]);
  }

 private:
  Storage& storage_;
  const Score* next_;    // the lane's first score of the next tile
  int64_t line_stride_;  // from a line of the tile to the next, in global memory
  int64_t tile_stride_;
  int rows_;          // that exist, from the first on
  int all_blocks_;    // that exist
  int blocks_;        // from the next tile's first on
  int least_blocks_;  // of those, for a tile to be copied in whole chunks
  int aligned_;       // whether all lines start with a chunk
  int first_early_;   // early(0)

  // Where the lane begins to copy.
  static FLASHINFER_MSA_DEVICE int line() { return lane_index() / kChunks; }
  static FLASHINFER_MSA_DEVICE int at() { return lane_index() % kChunks * kChunk; }

  // Scores by which a copy begins before a line; the same for all tiles.
  FLASHINFER_MSA_DEVICE int early(int line) const {
    if constexpr (!kAnyStart && !kBlocksTogether) return 0;
    return (first_early_ + line % kChunk * static_cast<int>(line_stride_ & kInChunk)) & kInChunk;
  }
  // The first score of a line of the next tile; of a row's line that is one it comes early by.
  FLASHINFER_MSA_DEVICE const Score* start_of(int line_of_tile) const {
    return next_ + early(line()) - at() + (line_of_tile - line()) * line_stride_;
  }

  FLASHINFER_MSA_DEVICE int least_blocks(const Params& p, int head, int first_token) const {
    // Whether what lies between the call's lines, or its heads, is its own.
    const bool has_all = line_stride_ == (kBlocksTogether ? p.blocks : p.tokens);
    const bool has_more = has_all && p.head_stride == int64_t{p.blocks} * p.tokens && head > 0;
    if (!aligned_ && !(has_all && (kAnyStart || kBlocksTogether))) return INT_MAX;
    if (first_early_ > 0 && first_token == 0 && !has_more) return INT_MAX;
    const int most = aligned_ ? kWarpSize : kWarpSize + kChunk - 1;  // touched from a line's start
    if constexpr (kBlocksTogether) {
      if (rows_ < kWarpSize) return INT_MAX;
      return has_all && rows_ > kWarpSize && p.blocks >= most ? -kChunk : kTileBlocks;
    } else {
      if (rows_ >= most) return kTileBlocks;
      return has_all && p.tokens >= most ? kTileBlocks + 1 : INT_MAX;
    }
  }

  // A tile that reaches past the rows or the blocks: score by score.
  FLASHINFER_MSA_DEVICE void copy_edge(int t) const {
    constexpr int kAtOnce = 8;
    const int lane = lane_index();
    const Score* from = start_of(0) + lane;
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int first = 0; first < kWarpSize; first += kAtOnce, from += kAtOnce * line_stride_) {
      copy_scores<kAtOnce>(from, line_stride_, [&](int i) -> ScorePlace<Score> {
        const int line = first + i;
        Score* tile = storage_.tile[t];
        if constexpr (kBlocksTogether) {
          const int block = all_blocks_ - blocks_ + lane - early(i);
          const bool exists = line < rows_ && block >= 0 && block < all_blocks_;
          return {&tile[index(line, lane)], exists, early(i)};
        } else {
          return {&tile[index(line, early(i) + lane)], lane < rows_ && line < blocks_, 0};
        }
      });
    }
    static_assert(kAtOnce % kChunk == 0, "a line starts as the one so many before it");
  }

  static FLASHINFER_MSA_DEVICE int index(int line, int at) {
    if constexpr (!kBlocksTogether) return line * Storage::kLine + at;
    // A line has kChunks chunks; 128 bytes of banks hold 8 of them.
    const int turn = line / (8 / kChunks) % kChunks;
    return line * Storage::kLine + ((at / kChunk) ^ turn) * kChunk + at % kChunk;
  }
};

}  // namespace flashinfer_msa
