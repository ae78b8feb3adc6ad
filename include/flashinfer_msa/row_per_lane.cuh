// SPDX-License-Identifier: Apache-2.0
// Kernel scope: one lane a row, for calls with many rows, where bytes and issue slots are all.
//
// A thread block takes 32 rows of one head; its warps split their blocks into slices, which stream
// through shared memory tile by tile. A lane looks only at its own row.
//  1. Over the first tiles, and the last, a sorting network over group maxima, merged across the
//     warps, gives every row a first threshold: a score that enough blocks reach.
//  2. Of every tile, scores that pass the threshold go to the lane's own list. Passing is rare. At
//     checkpoints, ever further apart, the warps' lists together give a better threshold; a list
//     that fills up before is cut back to its own best blocks. So no input overflows it.
//  3. The warps' lists, sorted and merged, give the exact threshold. Every warp counts its blocks
//     above and at it, and writes them at their final places: ascending ids without a sort.
// (Longer than a header should be: the steps share the lane's list and the warps' thresholds.)
#pragma once

#include "lane_list.cuh"
#include "slice.cuh"
#include "tile_ring.cuh"

namespace flashinfer_msa {

template <class PolicyT, bool kBlocksTogether, int kWarpsT, int kTilesT>
struct RowPerLane {
  using Policy = PolicyT;
  using Score = typename Policy::Score;
  static constexpr int kWarps = kWarpsT;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kTiles = kTilesT;                        // of a warp's ring
  static constexpr int kWidth = Policy::kTopK <= 16 ? 16 : 32;  // of the sorting networks
  static constexpr int kGroups = kWarps == 1 ? kTileBlocks : kWidth;
  static constexpr int kCheckpoint = 4;  // tiles of a slice before the first checkpoint
  static constexpr int kCheckpointGrowth = 8;
  static constexpr int kLongSlice = 16;  // tiles, so that reading one twice does not show
  static_assert(kLongSlice > kTiles, "the last tile is none of the first");
  static_assert(Policy::kTopK <= 32, "wider selections take RowsPerBlock");
  static_assert(kWarps * kGroups >= 2 * kWidth,
                "the first threshold is no more than a third passes");

  using Slice = WarpSlice<kWarps>;
  using Ring = TileRing<Score, kBlocksTogether, kTiles>;
  using List = LaneList<2 * kWidth, kWidth>;
  struct Storage {
    TileRingStorage<Score, kTiles> ring[kWarps];
    LaneListStorage<List::kCapacity> list[kWarps];
    union {
      float sorted[kWarps > 1 ? kWarps / 2 : 1][kWidth][kWarpSize];
      int32_t answer[kWarpSize][Policy::kTopK + 1];  // one column of padding: no bank conflicts
    };
    float threshold[kWarpSize];
    int32_t above[kWarps][kWarpSize], equal[kWarps][kWarpSize];
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) {
    return grid_of_heads(p, (p.tokens + kWarpSize - 1) / kWarpSize);
  }

  FLASHINFER_MSA_DEVICE void run() {
    const int first_token = block_x() * kWarpSize;
    const int token = first_token + lane_index();
    const int head = params.first_head + block_y();
    wait_for_producer(params.scores);
    const Row<Policy> row(params, token < params.tokens ? token : params.tokens - 1);
    const int wanted = Policy::wanted(params);
    const Slice slice(row, wanted);
    Ring ring(smem.ring[warp_index()], params, head, first_token, slice.first, slice.last);
    List list(smem.list[warp_index()]);

    // Of a long slice the last tile is looked at first too: where scores rise all along, nearly all
    // would pass a threshold of the first.
    const bool with_end = slice.tiles >= kLongSlice;
    for (int t = 0; t < kTiles; ++t) {
      if (with_end && t == kTiles - 1) ring.skip(slice.tiles - kTiles);
      if (t < slice.tiles) ring.copy_next(t);
      commit_copies();
    }
    list.passing = next_below(first_threshold(ring, slice, with_end, wanted));
    if (with_end) {  // it makes room for the tile whose place it took
      ring.skip(kTiles - 1 - slice.tiles);
      sync_warp();
      ring.copy_next(kTiles - 1);
    }
    commit_copies();
    int checkpoint = kCheckpoint;
    for (int t = 0, place = 0; t < slice.tiles; ++t) {
      if (t >= kTiles - 1) {
        wait_copies<kTiles - 1>();
        sync_warp();
      }
      push(ring, list, place, slice.first + t * kTileBlocks, slice.inside(t), wanted);
      sync_warp();
      if (t + kTiles < slice.tiles) ring.copy_next(place);
      commit_copies();
      place = place + 1 == kTiles ? 0 : place + 1;
      if (kWarps > 1 && t + 1 == checkpoint && t + 1 < slice.tiles) {
        raise(list, wanted);
        checkpoint *= kCheckpointGrowth;
      }
    }
    choose(row, list, wanted);
    sync_block();
    write(head, first_token);
  }

 private:
  // A score that at least `wanted` blocks of the row's tiles in the ring reach, -inf if there are
  // fewer.
  FLASHINFER_MSA_DEVICE float first_threshold(const Ring& ring, const Slice& slice, bool with_end,
                                              int wanted) {
    float leader[kGroups];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kGroups; ++i) leader[i] = no_score();
    wait_copies<0>();
    sync_warp();
    for (int t = 0; t < kTiles && t < slice.tiles; ++t) {
      const int tile = with_end && t == kTiles - 1 ? slice.tiles - 1 : t;
      lead(ring, t, slice.inside(tile), leader);
    }
    float top[kWidth];
    FLASHINFER_MSA_UNROLL
    for (int base = 0; base < kGroups; base += kWidth) {
      float more[kWidth];
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kWidth; ++i) more[i] = nan_as_infinity(leader[base + i]);
      sort_descending(more);
      if (base > 0) merge_descending(more, [&](int i) { return top[i]; });
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kWidth; ++i) top[i] = more[i];
    }
    return merged_threshold(top, wanted);
  }

  // Raises each group's leader to the best of its blocks in a tile.
  static FLASHINFER_MSA_DEVICE void lead(const Ring& ring, int place, uint32_t inside,
                                         float (&leader)[kGroups]) {
    if (warp_any(inside != ~0u)) {
      for_each_score(ring, place, [&](int block, float s) {
        const float masked = inside >> block & 1 ? s : no_score();
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
    uint32_t passes = 0;
    for_each_score(ring, place, [&](int block, float s) {
      if (!(s <= list.passing)) passes |= 1u << block;
    });
    passes &= inside;
    while (true) {
      const bool tight = warp_any(list.count() + count_bits(passes) > List::kCapacity);
      if (tight) list.shrink(wanted);
      const int most = warp_max(count_bits(passes));
      for (int n = tight && most > kWidth ? kWidth : most; n > 0; --n) {
        if (passes != 0) {
          const int block = lowest_bit(passes);
          list.append(nan_as_infinity(ring.score(place, block)), first + block);
          passes &= passes - 1;
        }
      }
      if (!tight || !warp_any(passes != 0)) return;
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
    const float threshold = merged_threshold(top, wanted);
    list.cut(threshold, List::kCapacity);
    list.passing = larger(list.passing, next_below(threshold));
  }

  // The `wanted`-th largest score over all warps' descending lists, for every warp's lane.
  FLASHINFER_MSA_DEVICE float merged_threshold(float (&top)[kWidth], int wanted) {
    if constexpr (kWarps == 1) return pick(top, wanted - 1);
    const int w = warp_index(), l = lane_index();
    FLASHINFER_MSA_UNROLL
    for (int half = kWarps / 2; half >= 1; half /= 2) {
      if (w >= half && w < 2 * half) {
        FLASHINFER_MSA_UNROLL
        for (int i = 0; i < kWidth; ++i) smem.sorted[w - half][i][l] = top[i];
      }
      sync_block();
      if (w < half) merge_descending(top, [&](int i) { return smem.sorted[w][i][l]; });
      if (half > 1) sync_block();
    }
    if (w == 0) smem.threshold[l] = pick(top, wanted - 1);
    sync_block();
    return smem.threshold[l];
  }

  // Puts the lane's share of the answer where it belongs, in `smem.answer`.
  FLASHINFER_MSA_DEVICE void choose(const Row<Policy>& row, const List& list, int wanted) {
    float top[kWidth];
    list.sort(top);
    const float threshold = merged_threshold(top, wanted);
    const int w = warp_index(), l = lane_index();
    int chosen = 0, ties = 0, before = 0;
    if constexpr (kWarps == 1) {
      chosen = list.count() < wanted ? list.count() : wanted;
      ties = List::ties_wanted(top, threshold, wanted);
    } else {
      int above = 0, equal = 0;
      for (int i = l; i < list.end; i += kWarpSize) {
        above += list.storage.score[i] > threshold;
        equal += list.storage.score[i] == threshold;
      }
      smem.above[w][l] = above;
      smem.equal[w][l] = equal;
      sync_block();
      int above_before = 0, equal_before = 0, above_all = 0, equal_all = 0;
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kWarps; ++i) {
        if (i == w) above_before = above_all, equal_before = equal_all;
        above_all += smem.above[i][l];
        equal_all += smem.equal[i][l];
      }
      const int all_ties = wanted > above_all ? wanted - above_all : 0;
      chosen = above_all + (equal_all < all_ties ? equal_all : all_ties);
      ties = all_ties - equal_before;
      before = above_before + (equal_before < all_ties ? equal_before : all_ties);
    }
    int slot = row.begin + before;
    for (int i = l; i < list.end; i += kWarpSize) {
      const float s = list.storage.score[i];
      const bool tie = s == threshold && ties > 0;
      if (s > threshold || tie) smem.answer[l][slot++] = list.storage.block[i];
      ties -= tie;
    }
    if (w == 0) {  // the forced blocks, and -1 where there is nothing
      for (int i = 0; i < row.begin; ++i) smem.answer[l][i] = i;
      for (int i = row.begin + chosen; i < Policy::topk(params); ++i) {
        smem.answer[l][i] = row.after_chosen(i, chosen);
      }
    }
  }

  // Writes the rows: consecutive threads, consecutive slots.
  FLASHINFER_MSA_DEVICE void write(int head, int first_token) const {
    const int topk = Policy::topk(params);
    const int left = params.tokens - first_token;
    const int rows = left < kWarpSize ? left : kWarpSize;
    int32_t* output = params.output + (int64_t{first_token} * params.heads + head) * topk;
    const int64_t row_stride = int64_t{params.heads} * topk;
    for (int i = thread_index(); i < rows * topk; i += kThreads) {
      output[i / topk * row_stride + i % topk] = smem.answer[i / topk][i % topk];
    }
  }
};

}  // namespace flashinfer_msa
