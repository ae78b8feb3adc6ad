// SPDX-License-Identifier: Apache-2.0
// Kernel scope: a thread block for eight rows of adjacent tokens, as RowsPerBlock, where the rows
// are too long for its registers. A sector of 32 bytes holds the eight.
//
// The blocks are split into a slice for each warp, which streams through shared memory tile by
// tile; the warps need each other only at the beginning and at the end.
//  1. The leaders of groups of a tile at either end of every slice give each row a lower bound.
//  2. Each warp lists the scores of its slice that reach the bound. A list that fills up is cut
//     back to its best, and the bound rises for this warp.
//  3. The lists, one after the other, are in block order; one warp a row chooses among them.
#pragma once

#include "group_leaders.cuh"
#include "quad_list.cuh"
#include "quad_ring.cuh"
#include "row_share.cuh"
#include "short_row.cuh"
#include "warp_narrow.cuh"

namespace flashinfer_msa {

template <class PolicyT, int kWarpsT, int kSharesT = 1>
struct RowsInSlices {
  using Policy = PolicyT;
  using Score = typename Policy::Score;
  static constexpr int kWarps = kWarpsT;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kRows = Quads::kRows;
  static constexpr int kShares = kSharesT;  // thread blocks of a row
  using Share = RowShare<Policy::kTopK, kRows, kShares>;
  static constexpr int kItems = 16;  // scores of a lane in a tile
  static constexpr int kTiles = 2;   // of a warp's ring

  using Ring = QuadRing<Score, kItems, kTiles>;
  static constexpr int kWidth = network_width(Policy::kTopK);
  // Room for what is wanted and for a member's stretch, in whole banks.
  using List = QuadList<(kWidth + kItems + 31) / 32 * 32, kWidth>;
  using Leaders = GroupLeaders<Quads, kWarps, groups_per_lane(Policy::kTopK)>;
  static constexpr int kLeaders = Leaders::kLeaders;
  static_assert(kTiles * kItems % kLeaders == 0, "items are dealt evenly to groups");
  // Of each warp's list in the end: all of it, or where that would take too much, its best.
  static constexpr int kKept = Policy::kTopK <= 32 ? List::kCapacity : kWidth;
  using Candidates = CandidateList<Policy::kTopK, kWarps * kKept, has_many_rows(kRows)>;

  struct Storage {
    union {
      typename Ring::Storage ring[kWarps];
      Candidates candidates[kRows];  // of all warps
      typename ShortRow<Policy>::Storage short_row[kRows];
    };
    union {
      typename List::Storage list[kWarps];
      struct {
        typename Leaders::Storage leaders;
        alignas(16) float best_of[kRows][Leaders::kGroups];
      } first;
      typename Share::Storage share;
    };
    float bound[kRows];
    int32_t count[kWarps][kRows];  // of each list
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_tokens(p, kRows, kShares); }

  FLASHINFER_MSA_DEVICE void run() {
    const int head = params.first_head + block_y();
    const int first_token = Share::first_token();
    const int token = existing_token(params, first_token + Quads::row());
    wait_for_producer(params.scores);
    Ring ring(smem.ring[warp_index()], params, head, first_token);
    const int limit = Row<Policy>::limit(params, token);
    // As if some row had all blocks: where slices begin depends on the extents.
    int tiles = tiles_for(params.blocks);  // of a slice
    int end_tile = end_tile_for(params.blocks);
    copy_first(ring, slice() * tiles, end_tile);
    const Row<Policy> row = Row<Policy>::of_limit(params, limit);
    const int wanted = Policy::wanted(params);
    const int longest = warp_max(row.end);
    if (longest <= ShortRow<Policy>::kBlocks) {
      wait_copies<0>();
      if (Share::share() > 0) return;
      sync_block();  // short rows take the place of the rings
      return ShortRow<Policy>::template run_rows<Quads, kWarps>(params, head, first_token, row,
                                                                smem.short_row);
    }
    if (tiles != tiles_for(longest) || end_tile != end_tile_for(longest)) {
      const int past = slice() * tiles + end_tile + 1;
      tiles = tiles_for(longest);
      end_tile = end_tile_for(longest);
      wait_copies<0>();
      sync_warp();
      copy_first(ring, slice() * tiles - past, end_tile);
    }
    // The lane's first block, and what of the row's middle lies from there on.
    const int first = slice() * tiles * Ring::kBlocks + Quads::member() * kItems;
    const int begin = row.begin - first, end = row.end - first;

    float least = first_bound(ring, end_tile, begin, end, wanted);
    ring.skip(-end_tile);
    if (tiles > 1) ring.copy_next(1);
    commit_copies();
    List list{smem.list[warp_index()]};
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int t = 0, place = 0; t < tiles; ++t) {
      wait_copies<kTiles - 1>();
      sync_warp();
      const int done = t * Ring::kBlocks;
      take(ring, place, first + done, begin - done, end - done, wanted, least, list);
      sync_warp();
      if (t + kTiles < tiles) ring.copy_next(place);
      commit_copies();
      place = place + 1 == kTiles ? 0 : place + 1;
    }
    if constexpr (kKept < List::kCapacity) {
      if (warp_any(list.total > kKept)) list.shrink(wanted);
    }
    gather(list);
    Share::get_ready();  // the lists have been read: the shared rows take their place
    Share{smem.share}.template write_rows<Quads, kWarps, Policy>(
        params, head, row, [&](int r) -> Candidates& { return smem.candidates[r]; },
        [&](int r) { return warp_sum(lane_index() < kWarps ? smem.count[lane_index()][r] : 0); });
  }

 private:
  // Which of a row's slices is the warp's.
  static FLASHINFER_MSA_DEVICE int slice() { return Share::share() * kWarps + warp_index(); }

  // Tiles of a slice, where there are so many blocks.
  static FLASHINFER_MSA_DEVICE int tiles_for(int blocks) {
    constexpr int kStep = kShares * kWarps * Ring::kBlocks;
    return (blocks + kStep - 1) / kStep;
  }

  // The warp's last tile that has enough of them to choose from, 0 if there is none.
  static FLASHINFER_MSA_DEVICE int end_tile_for(int blocks) {
    const int whole = tiles_for(blocks) * Ring::kBlocks;
    const int rest = blocks - slice() * whole;
    const int most = rest < whole ? rest : whole;
    return most < kWidth ? 0 : (most - kWidth) / Ring::kBlocks;
  }

  // Starts to copy the first tile of a slice that begins so many tiles on, and one at its end.
  static FLASHINFER_MSA_DEVICE void copy_first(Ring& ring, int skipped, int end_tile) {
    ring.skip(skipped);
    ring.copy_next(0);
    commit_copies();
    if (end_tile > 0) {
      ring.skip(end_tile - 1);
      ring.copy_next(1);
    }
    commit_copies();
  }

  // What a score must reach to be among the best: what `wanted` groups' leaders of a tile at either
  // end of the slices do. Of scores that rise all along nearly all would reach what the first do.
  FLASHINFER_MSA_DEVICE float first_bound(const Ring& ring, int end_tile, int begin, int end,
                                          int wanted) {
    float leader[kLeaders];
    FLASHINFER_MSA_UNROLL
    for (int g = 0; g < kLeaders; ++g) leader[g] = no_score();
    static_assert(kTiles == 2, "one tile of either end");
    FLASHINFER_MSA_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      t == 0 ? wait_copies<1>() : wait_copies<0>();
      sync_warp();
      float score[kItems];
      ring.read(t, score);
      const int done = t == 0 ? 0 : end_tile * Ring::kBlocks;
      const uint32_t inside = t == 0 || end_tile > 0 ? bits_between(begin - done, end - done) : 0;
      if (warp_any(inside != ~0u)) {
        FLASHINFER_MSA_UNROLL
        for (int i = 0; i < kItems; ++i) {
          if (!(inside << i >> 31)) score[i] = no_score();
        }
      }
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kItems; ++i) {
        float& best = leader[(t * kItems + i) % kLeaders];
        best = larger_or_nan(best, score[i]);
      }
    }
    Leaders leaders{smem.first.leaders};
    leaders.put(leader);
    sync_block();
    Quads::for_each_row<kWarps>([&](int r) {
      const float bound = leaders.bound(r, wanted, smem.first.best_of[r]);
      if (lane_index() == 0) smem.bound[r] = least_reaching(bound);
    });
    sync_block();
    return smem.bound[Quads::row()];
  }

  // Which of the lane's items of a tile reach `least` and lie in the middle; the first's bit is the
  // highest.
  static FLASHINFER_MSA_DEVICE uint32_t find_reaching(const Ring& ring, int place, int begin,
                                                      int end, float least) {
    float score[kItems];
    ring.read(place, score);
    uint32_t failing = 0;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) failing = mark_if_short(failing, score[i], least);
    const uint32_t reaching = ~failing << (32 - kItems);
    return warp_any(begin > 0 || end < kItems) ? reaching & bits_between(begin, end) : reaching;
  }

  // Lists what of a tile reaches `least`. `block`: the lane's first of the tile.
  static FLASHINFER_MSA_DEVICE void take(const Ring& ring, int place, int block, int begin, int end,
                                         int wanted, float& least, List& list) {
    uint32_t here = find_reaching(ring, place, begin, end, least);
    if (append(ring, place, block, here, list)) return;
    // Too many, be it of earlier tiles: then it is enough to cut the list back.
    const auto cut = [&] {
      least = larger(least, least_exceeding(list.shrink(wanted)));
      here = find_reaching(ring, place, begin, end, least);
    };
    cut();
    if (append(ring, place, block, here, list)) return;
    // Of this tile: member after member, the list cut back before each.
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int m = 0; m < Quads::kMembers; ++m) {
      if (m > 0) {
        sync_warp();
        cut();
      }
      int all = 0;
      const uint32_t some = Quads::member() == m ? here : 0;
      put(ring, place, block, some, list.total + Quads::sum_before(count_bits(some), all), list);
      list.total += all;
    }
  }

  // Lists all of that, or answers false, and lists none, if the list has no room.
  static FLASHINFER_MSA_DEVICE bool append(const Ring& ring, int place, int block, uint32_t items,
                                           List& list) {
    if (!warp_any(items != 0)) return true;
    int all = 0;
    const int before = Quads::sum_before(count_bits(items), all);
    if (warp_any(list.total + all > List::kCapacity)) return false;
    put(ring, place, block, items, list.total + before, list);
    list.total += all;
    return true;
  }

  static FLASHINFER_MSA_DEVICE void put(const Ring& ring, int place, int block, uint32_t items,
                                        int at, List& list) {
    constexpr uint32_t kLast = 1u << (32 - kItems);
    while (warp_any(items != 0)) {
      const int i = leading_zeros(items | kLast);  // any item, where there is none
      const float score = ring.score(place, i);
      if (items != 0) {
        list.storage.score[Quads::row()][at] = score;
        list.storage.block[Quads::row()][at] = block + i;
        ++at;
      }
      items &= ~(0x80000000u >> i);
    }
  }

  // Brings the lists of all warps together, row by row.
  FLASHINFER_MSA_DEVICE void gather(const List& list) {
    const int row = Quads::row();
    if (Quads::member() == 0) smem.count[warp_index()][row] = list.total;
    sync_block();  // and the candidates take the place of the rings
    int to = Quads::member();
    FLASHINFER_MSA_UNROLL
    for (int w = 0; w < kWarps; ++w) to += w < warp_index() ? smem.count[w][row] : 0;
    for (int i = Quads::member(); i < list.total; i += Quads::kMembers, to += Quads::kMembers) {
      smem.candidates[row].score[to] = list.storage.score[row][i];
      smem.candidates[row].block[to] = list.storage.block[row][i];
    }
    sync_block();
  }
};

}  // namespace flashinfer_msa
