// SPDX-License-Identifier: Apache-2.0
// Kernel scope: one lane a row, for calls with many rows, where bytes and issue slots are all.
//
// A thread block takes 32 rows of one head; its warps split their blocks into slices, which stream
// through shared memory tile by tile. A lane looks only at its own row, and at one slice of it.
// Where there are not so many rows, it takes 16 or 8 of them, and two or four lanes of each warp
// have slices of the same one.
//  1. Over the first tiles, and the last, a sorting network over group maxima, merged across the
//     warps, gives every row a first threshold: a score that enough blocks reach.
//  2. Of every tile, scores that pass the threshold go to the lane's own list. Passing is rare. At
//     checkpoints, ever further apart, the warps' lists together give a better threshold; a list
//     that fills up before is cut back to its own best blocks. So no input overflows it.
//  3. The lanes' lists, sorted and merged, give the exact threshold. For every slice its blocks
//     above and at it are counted, and written at their final places: ascending ids without a sort.
// One warp alone for 32 rows does the least work, and needs no other.
#pragma once

#include "lane_list.cuh"
#include "lane_merge.cuh"
#include "score_pair.cuh"
#include "slice.cuh"
#include "tile_ring.cuh"

namespace flashinfer_msa {

// kAnyStart: for lines of tokens that may start anywhere in 16 bytes.
template <class PolicyT, bool kBlocksTogether, int kWarpsT, int kTilesT, int kRowsT, bool kAnyStart>
struct RowPerLaneOf {
  using Policy = PolicyT;
  using Score = typename Policy::Score;
  static constexpr int kWarps = kWarpsT;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kShares = 1;
  using Rows = RowGroup<kRowsT>;
  static constexpr int kSlices = kWarps * Rows::kMembers;       // of a row
  static constexpr int kTiles = kTilesT;                        // of a warp's ring
  static constexpr int kWidth = Policy::kTopK <= 16 ? 16 : 32;  // of the sorting networks
  static constexpr int kGroups = kWarps == 1 ? kTileBlocks : kWidth;
  static constexpr int kCheckpoint = 4;        // no checkpoint is before so many tiles of a slice
  static constexpr int kManyCheckpoints = 32;  // tiles from which there are two
  // Tiles of a slice, so that a first threshold of one less will do, and before its end, so that
  // reading one twice does not show.
  static constexpr int kMiddleSlice = kWarps == 1 ? 14 : 7;
  static constexpr int kLongSlice = kWarps == 1 ? 18 : Rows::kMembers == 1 ? 14 : 7;
  static_assert(kLongSlice > kTiles, "the tile at the end is none of the first");
  static_assert(Policy::kTopK <= 32, "wider selections take RowsPerBlock");
  static_assert(kSlices * kGroups >= 2 * kWidth,
                "the first threshold is no more than a third passes");

  using Slice = LaneSlice<kSlices>;
  using Ring = TileRing<Score, kBlocksTogether, kTiles, kAnyStart, Rows::kRows>;
  using List = LaneList<2 * kWidth, kWidth>;
  static constexpr int kAtOnce = List::kStep;  // candidates of a tile that are listed at once
  // Tiles that are copied before the extents are known.
  static constexpr int kAhead = kWarps == 1 ? 2 : kTiles > 1 ? 1 : 0;
  static_assert(kAhead < kTiles, "the last of the first tiles depends on the extents");
  using Merge = LaneMerge<kWarps, kWidth, Rows>;
  struct Storage {
    union {
      typename Ring::Storage ring[kWarps];
      int32_t answer[Rows::kRows][Policy::kTopK + 1];  // one column of padding: no bank conflicts
    };
    typename List::Storage list[kWarps];
    typename Merge::Storage merge[kWarps > 1];
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_tokens(p, Rows::kRows); }

  FLASHINFER_MSA_DEVICE void run() {
    const int first_token = block_x() * Rows::kRows;
    const int token = existing_token(params, first_token + Rows::row());
    const int head = params.first_head + block_y();
    wait_for_producer(params.scores);
    const int limit = Row<Policy>::limit(params, token);
    Ring ring(smem.ring[warp_index()], params, head, first_token);
    // As if some row had all blocks: where slices begin depends on the extents.
    const int tiles = Slice::tiles_for(params.blocks + Ring::most_late(params));
    if (kSlices > 1) {
      ring.skip(warp_index() * Rows::kMembers * tiles);
      ring.set_slice(tiles);
    }
    copy_first(ring, 0, kAhead, tiles);
    const Row<Policy> row = Row<Policy>::of_limit(params, limit);
    const int wanted = Policy::wanted(params);
    const Slice slice(row, Merge::own_slice(), ring.blocks_late(), wanted);
    if (kSlices > 1 && slice.tiles != tiles) {
      ring.skip(warp_index() * Rows::kMembers * (slice.tiles - tiles) - kAhead);
      ring.set_slice(slice.tiles);
      wait_copies<0>();
      sync_warp();
      copy_first(ring, 0, kAhead, slice.tiles);
    }
    List list(smem.list[warp_index()]);

    // Of a long slice a tile at its end is looked at first too: where scores rise all along, nearly
    // all would pass a threshold of the first.
    int end_tile = slice.last_tile_with(kWidth);
    if (Rows::kMembers > 1) end_tile = warp_max(end_tile);
    const bool with_end = end_tile >= kLongSlice;
    copy_first(ring, kAhead, kTiles - 1, slice.tiles);
    if (with_end) ring.skip(end_tile + 1 - kTiles);
    copy_first(ring, kTiles - 1, kTiles, slice.tiles);
    list.raise_to(first_threshold(ring, slice, with_end ? end_tile : 0, wanted));
    if (with_end) {  // it makes room for the tile whose place it took
      ring.skip(kTiles - 2 - end_tile);
      sync_warp();
      ring.copy_next(kTiles - 1);
    }
    commit_copies();
    // Where a quarter of a long slice is done, and where half of any is.
    int checkpoint = slice.tiles / (slice.tiles >= kManyCheckpoints ? 4 : 2);
    if (checkpoint < kCheckpoint) checkpoint = kCheckpoint;
    for (int t = 0, place = 0; t < slice.tiles; ++t) {
      if (t >= kTiles - 1) {
        wait_copies<kTiles - 1>();
        sync_warp();
      }
      push(ring, list, place, t * kTileBlocks, slice.inside(t), wanted);
      sync_warp();
      if (t + kTiles < slice.tiles) ring.copy_next(place);
      commit_copies();
      place = place + 1 == kTiles ? 0 : place + 1;
      if constexpr (kWarps > 1) {
        if (t + 1 == checkpoint && t + 1 < slice.tiles) {
          raise(list, wanted);
          checkpoint *= 2;
        }
      }
    }
    choose(row, list, slice.first - ring.blocks_late(), wanted);
    sync_block();
    write(head, first_token);
  }

 private:
  // Starts to copy tiles [begin, end), those that there are.
  static FLASHINFER_MSA_DEVICE void copy_first(Ring& ring, int begin, int end, int tiles) {
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int t = begin; t < end; ++t) {
      if (t < tiles) ring.copy_next(t);
      commit_copies();
    }
  }

  // A score that at least `wanted` blocks of the row's tiles in the ring reach, -inf if there are
  // fewer.
  FLASHINFER_MSA_DEVICE float first_threshold(const Ring& ring, const Slice& slice, int end_tile,
                                              int wanted) {
    float leader[kGroups];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kGroups; ++i) leader[i] = no_score();
    // One tile less of a middling slice: while others wait for theirs it is on its way.
    const bool one_less = kTiles > 2 && end_tile == 0 && slice.tiles >= kMiddleSlice;
    for (int t = 0; t < (one_less ? kTiles - 1 : kTiles); ++t) {
      wait_for_tile(t);
      if (t >= slice.tiles) continue;
      const int tile = end_tile > 0 && t == kTiles - 1 ? end_tile : t;
      lead(ring, t, slice.inside(tile), leader);
    }
    if constexpr (kWarps == 1) {
      static_assert(kGroups == 2 * kWidth, "two leaders a pair");
      const HalfPair infinities = upper_halves(infinity(), infinity());
      HalfPair pair[kWidth];
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        // +inf in place of as many leaders as are wanted less than kWidth.
        if (i < kWidth - wanted) leader[i] = infinity();
        pair[i] = smaller(upper_halves(leader[i], leader[i + kWidth]), infinities);  // NaN is +inf
      }
      const float bound = bound_of_pairs(pair);
      if (FLASHINFER_MSA_UNLIKELY(warp_any(is_crowded(pair, bound)))) {
        float one[kWidth], other[kWidth];
        FLASHINFER_MSA_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          one[i] = nan_as_infinity(leader[i]);
          other[i] = nan_as_infinity(leader[i + kWidth]);
        }
        sort_descending(one);
        sort_descending(other);
        return keep_largest(one, other);
      }
      return bound;
    } else {
      static_assert(kGroups == kWidth, "what a warp brings to a merge");
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kWidth; ++i) leader[i] = nan_as_infinity(leader[i]);
      sort_descending(leader);
      return Merge{smem.merge[0]}.threshold(leader, wanted);
    }
  }

  // Waits for one of the first tiles.
  template <int kTile = 0>
  static FLASHINFER_MSA_DEVICE void wait_for_tile(int t) {
    if (t == kTile) {
      wait_copies<kTiles - 1 - kTile>();
      sync_warp();
    } else if constexpr (kTile + 1 < kTiles) {
      wait_for_tile<kTile + 1>(t);
    }
  }

  // Raises each group's leader to the best of its blocks in a tile.
  static FLASHINFER_MSA_DEVICE void lead(const Ring& ring, int place, uint32_t inside,
                                         float (&leader)[kGroups]) {
    if (warp_any(inside != ~0u)) {
      for_each_score(ring, place, [&](int block, float s) {
        const float masked = inside >> (kTileBlocks - 1 - block) & 1 ? s : no_score();
        leader[block % kGroups] = larger_or_nan(leader[block % kGroups], masked);
      });
    } else {
      for_each_score(ring, place, [&](int block, float s) {
        leader[block % kGroups] = larger_or_nan(leader[block % kGroups], s);
      });
    }
  }

  // Lists the blocks of a tile that pass; NaN does, as +inf.
  static FLASHINFER_MSA_DEVICE void push(const Ring& ring, List& list, int place, int first,
                                         uint32_t inside, int wanted) {
    uint32_t failing[2] = {};  // a bit a block, the first block's the highest; two short chains
    for_each_score(ring, place, [&](int block, float s) {
      uint32_t& marks = failing[block / (kTileBlocks / 2)];
      marks = mark_if_short(marks, s, list.least);
    });
    uint32_t passes = list.closed ? 0 : ~(failing[0] << kTileBlocks / 2 | failing[1]) & inside;
    while (warp_any(passes != 0)) {
      list.make_room(wanted);
      bool is_one[kAtOnce];
      int block[kAtOnce];
      float s[kAtOnce];
      FLASHINFER_MSA_UNROLL
      for (int j = 0; j < kAtOnce; ++j) {
        is_one[j] = passes != 0;
        block[j] = leading_zeros(passes | 1);  // any block, where there is none
        passes &= ~(0x80000000u >> block[j]);
      }
      FLASHINFER_MSA_UNROLL
      for (int j = 0; j < kAtOnce; ++j) s[j] = nan_as_infinity(ring.score(place, block[j]));
      FLASHINFER_MSA_UNROLL
      for (int j = 0; j < kAtOnce; ++j) list.append_if(is_one[j], s[j], first + block[j]);
    }
  }

  // Calls visit(block, score) for the lane's 32 scores of a tile.
  template <class Visit>
  static FLASHINFER_MSA_DEVICE void for_each_score(const Ring& ring, int place,
                                                   const Visit& visit) {
    FLASHINFER_MSA_UNROLL
    for (int chunk = 0; chunk < kTileBlocks / Ring::kChunk; ++chunk) {
      float v[Ring::kChunk];
      ring.read(place, chunk, v);
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < Ring::kChunk; ++i) visit(chunk * Ring::kChunk + i, v[i]);
    }
  }

  // Raises the threshold of every warp's lane to what all lists of the row know together. Scores
  // equal to it still pass: another slice's blocks do not win ties against this one's.
  FLASHINFER_MSA_DEVICE void raise(List& list, int wanted) {
    float top[kWidth];
    list.sort(top);
    const float threshold = Merge{smem.merge[0]}.threshold(top, wanted);
    list.keep_reaching(threshold);
    list.raise_to(threshold);
  }

  // Puts the lane's share of the answer where it belongs, in `smem.answer`.
  FLASHINFER_MSA_DEVICE void choose(const Row<Policy>& row, const List& list, int first,
                                    int wanted) {
    typename Merge::Share share;
    float best[kWidth];
    if constexpr (kWarps == 1) {
      const float threshold = list.find_threshold(wanted, best);
      share = {threshold, 0, List::ties_wanted(best, threshold, wanted),
               list.count() < wanted ? list.count() : wanted};
    } else {
      list.sort(best);
      share = Merge{smem.merge[0]}.share(best, wanted);
    }
    int32_t (&answer)[Policy::kTopK + 1] = smem.answer[Rows::row()];
    int slot = row.begin + share.before;
    list.visit_best(share.threshold, share.ties,
                    [&](int block) { answer[slot++] = first + block; });
    if (Merge::own_slice() == 0) {  // the forced blocks, and -1 where there is nothing
      for (int i = 0; i < row.begin; ++i) answer[i] = i;
      for (int i = row.begin + share.chosen; i < Policy::topk(params); ++i) {
        answer[i] = row.after_chosen(i, share.chosen);
      }
    }
  }

  // Writes the rows: consecutive threads, consecutive slots.
  FLASHINFER_MSA_DEVICE void write(int head, int first_token) const {
    constexpr int kWritten = kThreads / kWidth;  // rows, at once
    static_assert(Rows::kRows % kWritten == 0, "no row past the last");
    const int topk = Policy::topk(params);
    const int left = params.tokens - first_token;
    const int rows = left < Rows::kRows ? left : Rows::kRows;
    const int slot = thread_index() % kWidth, row = thread_index() / kWidth;
    const int64_t row_stride = int64_t{params.heads} * topk;
    int32_t* to = params.output + (int64_t{first_token + row} * params.heads + head) * topk + slot;
    if (slot >= topk) return;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < Rows::kRows; i += kWritten, to += kWritten * row_stride) {
      if (i + row < rows) *to = smem.answer[i + row][slot];
    }
  }
};

// Which of the two it is, the call tells: lines that may start anywhere need more room and steps,
// from which those that are aligned would take a sixth longer.
template <class PolicyT, bool kBlocksTogether, int kWarps, int kTiles, int kRows = kWarpSize,
          int kAnyTiles = kTiles>
struct RowPerLane {
  using Policy = PolicyT;
  static constexpr bool kAnyStart = !kBlocksTogether && Policy::kTopK <= 16;  // wider lack the room
  using Aligned = RowPerLaneOf<Policy, kBlocksTogether, kWarps, kTiles, kRows, false>;
  using AnyStart = RowPerLaneOf<Policy, kBlocksTogether, kWarps, kAnyTiles, kRows, kAnyStart>;
  static constexpr int kThreads = Aligned::kThreads;
  static constexpr int kShares = Aligned::kShares;
  union Storage {
    typename Aligned::Storage aligned;
    typename AnyStart::Storage any_start;
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return Aligned::grid(p); }
  static size_t storage_of(const Params& p) {
    return kAnyStart && !p.aligned ? sizeof(Storage) : sizeof(typename Aligned::Storage);
  }

  FLASHINFER_MSA_DEVICE void run() {
    if (kAnyStart && !params.aligned) return AnyStart{params, smem.any_start}.run();
    Aligned{params, smem.aligned}.run();
  }
};

}  // namespace flashinfer_msa
