// SPDX-License-Identifier: Apache-2.0
// Warp scope: brings a lane's 32 scores of its row to shared memory at a time, while the warp works
// on earlier ones. One warp owns a ring; its lanes copy for each other and read their own. Where it
// has fewer rows than lanes, those that share a row (its members) have a slice of its blocks each.
//
// A tile has the order of global memory: a line a block where tokens lie together, with a stretch
// of it for each member; a line a lane where blocks do. In the latter, chunks of 16 bytes change
// places by row, so that lanes that read the same chunk of their rows touch different banks.
//
// Copies take whole chunks, and so begin up to a chunk before a line that does not start with one
// (an odd number of tokens). What that brings with a line of tokens is skipped by its readers; a
// row's blocks come later by it, see blocks_late. Nothing but the call's own scores is touched.
#pragma once

#include <climits>

#include "row_group.cuh"
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
template <class Score, bool kBlocksTogether, int kTilesT, bool kAnyStart, int kRows>
struct TileRingStorage {
  static constexpr int kChunk = 16 / sizeof(Score);  // scores
  static constexpr int kStretch = kRows + (kAnyStart && !kBlocksTogether ? kChunk : 0);
  static constexpr int kLine = kBlocksTogether ? kTileBlocks : kWarpSize / kRows * kStretch;
  alignas(16) Score tile[kTilesT][kTileBlocks * kLine];
};

template <class Score, bool kBlocksTogether, int kTiles, bool kAnyStart, int kRows>
struct TileRing {
  using Storage = TileRingStorage<Score, kBlocksTogether, kTiles, kAnyStart, kRows>;
  using Group = RowGroup<kRows>;
  static constexpr int kMembers = Group::kMembers;
  static constexpr int kChunk = Storage::kChunk;
  static constexpr int kInChunk = kChunk - 1;  // bits of a place in one
  // Of a line of the tile; a stretch that may start anywhere is copied by itself.
  static constexpr int kChunks = (kAnyStart ? Storage::kStretch : kWarpSize) / kChunk;
  static constexpr int kLines = kWarpSize / kChunks;  // that a warp copies at once
  // Whether the lane's copies of a tile lie at any distance: kCopies of them, as far in all tiles.
  static constexpr bool kHasSteps = kBlocksTogether || kAnyStart;
  static constexpr int kCopies = (kTileBlocks + kLines - 1) / kLines;
  static constexpr int kMostStride = INT_MAX / (2 * kTileBlocks);  // so that steps have 32 bits
  static_assert(kAnyStart || kLines % kChunk == 0, "those of a lane start alike");
  static_assert(kAnyStart || kRows % kLines == 0, "no copy is for two members");
  static_assert(!kAnyStart || !kBlocksTogether, "a row's blocks may come late");

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
    next_ = first + line() * line_stride_ - early(line()) + column();
    least_blocks_ = least_blocks(p, head, first_token);
    if constexpr (kHasSteps) {
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        int to = i * kLines + line();
        if (kBlocksTogether) {  // for rows that do not exist the last, as existing_token() has it
          to %= kRows;
          to = to < rows_ ? to : rows_ - 1;
        }
        const uint32_t lines = static_cast<uint32_t>(to - line());
        const uint32_t step = lines * static_cast<uint32_t>(line_stride_);
        step_[i] = in_register(static_cast<int>(step) + early(line()) - early(to));
      }
    }
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
      copy_lines(t);
    } else if (!kBlocksTogether && least_blocks_ < INT_MAX) {
      copy_last_lines(t);
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

  // From now on slices have so many tiles, and this place is in the first member's.
  FLASHINFER_MSA_DEVICE void set_slice(int tiles) {
    if constexpr (kMembers == 1) return;
    const int more = tiles - slice_tiles_;
    next_ += copied_member() * more * tile_stride_;
    blocks_ -= (kMembers - 1) * more * kTileBlocks;
    slice_tiles_ = tiles;
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
        storage_.tile[t][kBlocksTogether
                             ? index(lane_index(), block)
                             : index(block, place(Group::member(), early(block) + Group::row()))]);
  }

 private:
  Storage& storage_;
  const Score* next_;    // the lane's first score of the next tile
  int64_t line_stride_;  // from a line of the tile to the next, in global memory
  int64_t tile_stride_;
  int rows_;                           // that exist, from the first on
  int all_blocks_;                     // that exist
  int blocks_;                         // from the first of the last member's next tile on
  int slice_tiles_ = 0;                // from a member's slice to the next one's
  int least_blocks_;                   // of those, for a tile to be copied in whole chunks
  int aligned_;                        // whether all lines start with a chunk
  int first_early_;                    // early(0)
  int step_[kHasSteps ? kCopies : 1];  // from next_ to where each of the lane's copies begins

  // Where the lane begins to copy.
  static FLASHINFER_MSA_DEVICE int line() { return lane_index() / kChunks; }
  static FLASHINFER_MSA_DEVICE int at() { return lane_index() % kChunks * kChunk; }
  // Of which member, the first one's where the others follow; and at which of its scores.
  static constexpr bool kSpansMembers = !kBlocksTogether && !kAnyStart;
  static FLASHINFER_MSA_DEVICE int copied_member() { return kSpansMembers ? at() / kRows : 0; }
  static FLASHINFER_MSA_DEVICE int column() { return kSpansMembers ? at() % kRows : at(); }

  // Scores by which a copy begins before a line; the same for all tiles.
  FLASHINFER_MSA_DEVICE int early(int line) const {
    if constexpr (!kAnyStart && !kBlocksTogether) return 0;
    return (first_early_ + (line & kInChunk) * static_cast<int>(line_stride_ & kInChunk)) &
           kInChunk;
  }
  // The first score of a member's in a line of its next tile; of a row's line that is one it comes
  // early by.
  FLASHINFER_MSA_DEVICE const Score* start_of(int line_of_tile, int member) const {
    return next_ + early(line()) - column() + (line_of_tile - line()) * line_stride_ +
           (member - copied_member()) * slice_tiles_ * tile_stride_;
  }
  // Blocks from the first of a member's next tile on.
  FLASHINFER_MSA_DEVICE int blocks_of(int member) const {
    return blocks_ + (kMembers - 1 - member) * slice_tiles_ * kTileBlocks;
  }

  FLASHINFER_MSA_DEVICE int least_blocks(const Params& p, int head, int first_token) const {
    // Whether what lies between the call's lines, or its heads, is its own.
    const bool has_all = line_stride_ == (kBlocksTogether ? p.blocks : p.tokens);
    const bool has_more = has_all && p.head_stride == int64_t{p.blocks} * p.tokens && head > 0;
    if (!aligned_ && !(has_all && (kAnyStart || kBlocksTogether))) return INT_MAX;
    if (kHasSteps && line_stride_ > kMostStride) return INT_MAX;
    if (first_early_ > 0 && first_token == 0 && !has_more) return INT_MAX;
    constexpr int kLeast = kBlocksTogether ? kTileBlocks : kRows;
    const int most = aligned_ ? kLeast : kLeast + kChunk - 1;  // touched from a line's start
    if constexpr (kBlocksTogether) {
      return has_all && rows_ > kRows && p.blocks >= most ? -kChunk : kTileBlocks;
    } else {
      if (rows_ >= most) return kTileBlocks;
      return has_all && p.tokens >= most ? kTileBlocks + 1 : INT_MAX;
    }
  }

  FLASHINFER_MSA_DEVICE void copy_lines(int t) const {
    if constexpr (kBlocksTogether) {
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        copy_async<16>(&storage_.tile[t][index(i * kLines + line(), column())],
                       start_of_copy(i, i * kLines / kRows));
      }
    } else if constexpr (kAnyStart) {
      FLASHINFER_MSA_UNROLL
      for (int m = 0; m < kMembers; ++m) {
        FLASHINFER_MSA_UNROLL
        for (int i = 0; i < kCopies; ++i) copy_stretch(t, i, m, kTileBlocks);
      }
    } else {
      const Score* from = next_;
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kTileBlocks; i += kLines, from += kLines * line_stride_) {
        copy_async<16>(&storage_.tile[t][index(i + line(), place(copied_member(), column()))],
                       from);
      }
    }
  }

  FLASHINFER_MSA_DEVICE const Score* start_of_copy(int i, int member) const {
    return next_ + member * slice_tiles_ * tile_stride_ + step_[i];
  }

  // The lane's i-th chunk of a member's stretches that may start anywhere.
  FLASHINFER_MSA_DEVICE void copy_stretch(int t, int i, int member, int lines) const {
    const int to = i * kLines + line();
    if (line() >= kLines || to >= lines) return;
    copy_async<16>(&storage_.tile[t][index(to, place(member, column()))], start_of_copy(i, member));
  }

  // Lines of tokens of the last blocks, no more than exist.
  FLASHINFER_MSA_DEVICE void copy_last_lines(int t) const {
    // The last block's line, if its end is not to be passed, is left for its own lanes to copy.
    const int singly = least_blocks_ > kTileBlocks;
    if constexpr (kAnyStart) {
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kCopies; ++i) {
        FLASHINFER_MSA_UNROLL
        for (int m = 0; m < kMembers; ++m) {
          const int left = blocks_of(m) - singly;
          copy_stretch(t, i, m, left < kTileBlocks ? left : kTileBlocks);
        }
      }
    } else {
      FLASHINFER_MSA_UNROLL_BY(2)
      for (int to = line(); to < kTileBlocks; to += kLines) {
        if (to >= blocks_of(copied_member()) - singly) continue;
        copy_async<16>(&storage_.tile[t][index(to, place(copied_member(), column()))],
                       start_of(to, copied_member()) + column());
      }
    }
    const int last = blocks_of(Group::member()) - 1;
    if (singly && last >= 0 && last < kTileBlocks && Group::row() < rows_) {
      copy_scores<1>(start_of(last, Group::member()) + Group::row(), 0,
                     [&](int) -> ScorePlace<Score> {
                       const int at = place(Group::member(), early(last) + Group::row());
                       return {&storage_.tile[t][index(last, at)], true, 0};
                     });
    }
  }

  // A tile that reaches past the rows or the blocks: score by score.
  FLASHINFER_MSA_DEVICE void copy_edge(int t) const {
    constexpr int kAtOnce = 8;
    static_assert(kAtOnce % kChunk == 0, "a line starts as the one so many before it");
    static_assert(kRows % kAtOnce == 0, "and has the same member");
    const int lane = lane_index(), row = Group::row();
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int first = 0; first < kWarpSize; first += kAtOnce) {
      const int member = kBlocksTogether ? first / kRows : Group::member();
      const Score* from = start_of(kBlocksTogether ? first % kRows : first, member) +
                          (kBlocksTogether ? lane : row);
      copy_scores<kAtOnce>(from, line_stride_, [&](int i) -> ScorePlace<Score> {
        const int line = first + i;
        Score* tile = storage_.tile[t];
        if constexpr (kBlocksTogether) {
          const int block = all_blocks_ - blocks_of(member) + lane - early(i);
          const bool exists = line % kRows < rows_ && block >= 0 && block < all_blocks_;
          return {&tile[index(line, lane)], exists, early(i)};
        } else {
          const bool exists = row < rows_ && line < blocks_of(member);
          return {&tile[index(line, place(member, early(i) + row))], exists, 0};
        }
      });
    }
  }

  // In a line of the tile.
  static FLASHINFER_MSA_DEVICE int place(int member, int column) {
    return kBlocksTogether ? column : member * Storage::kStretch + column;
  }
  static FLASHINFER_MSA_DEVICE int index(int line, int at) {
    if constexpr (!kBlocksTogether) {
      return line * Storage::kLine + at;
    } else {  // a line has kChunks chunks; 128 bytes of banks hold 8 of them
      const int turn = line / (8 / kChunks) % kChunks;
      return line * Storage::kLine + ((at / kChunk) ^ turn) * kChunk + at % kChunk;
    }
  }
};

}  // namespace flashinfer_msa
