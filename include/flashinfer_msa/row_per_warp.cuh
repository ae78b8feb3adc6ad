// SPDX-License-Identifier: Apache-2.0
// Kernel scope: a warp a row, for short rows of adjacent tokens. A thread block takes a few of
// them, reads them side by side, so that the sectors of memory which they share are read once, and
// turns them in shared memory; then each warp has a row in its registers, and needs no other.
//
// Scores are read while the extents still are: all that the row could have.
#pragma once

#include <cstddef>

#include "block_select.cuh"
#include "row_group.cuh"

namespace flashinfer_msa {

template <class PolicyT, int kRowsT, int kItemsT>
struct RowPerWarp {
  using Policy = PolicyT;
  using Score = typename Policy::Score;
  static constexpr int kRows = kRowsT;
  static constexpr int kItems = kItemsT;  // scores of a lane
  static constexpr int kWarps = kRows;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kShares = 1;
  static constexpr int kBlocks = kItems * kWarpSize;  // the most of a row
  using Group = RowGroup<kRows>;
  using Select = BlockSelect<Policy::kTopK, 1, kItems, has_many_rows(kRows)>;
  struct Slot {  // of a row
    union {      // one after the other
      float score[kBlocks];
      typename Select::Storage select;
    };
  };
  // So that a group's rows start at different banks.
  static constexpr int kPadding =
      (Group::kMembers + kWarpSize - sizeof(Slot) / sizeof(float) % kWarpSize) % kWarpSize;
  struct Storage {
    struct {
      Slot slot;
      float padding[kPadding];
    } row[kRows];
  };

  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_tokens(p, kRows); }

  FLASHINFER_MSA_DEVICE void run() {
    const int head = params.first_head + block_y();
    const int first_token = block_x() * kRows;
    const int token = first_token + warp_index();
    const Score* next =
        RowScores<Policy>(params, head, existing_token(params, first_token + Group::row()))
            .of(place_read(0));
    wait_for_producer(next);
    float score[kItems];
    const int64_t stride = kWarps * Group::kMembers * params.block_stride;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i, next += stride) {
      score[i] = load_score_if(place_read(i) < params.blocks, next);
    }
    const Row<Policy> row(params, existing_token(params, token));
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      smem.row[Group::row()].slot.score[place_read(i)] = score[i];
    }
    sync_block();
    if (token >= params.tokens) return;
    Slot& mine = smem.row[warp_index()].slot;
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      const float s = mine.score[place(i)];
      // No more blocks are forced at the beginning than kTopK.
      const bool has_begun = i * kWarpSize >= Policy::kTopK || place(i) >= row.begin;
      const bool is_inside = has_begun && place(i) < row.end;
      score[i] = is_inside ? nan_as_infinity(s) : no_score();
    }
    // No barrier: what Select writes first, a leader and what pads its list, takes the place of the
    // lane's own scores.
    static_assert(offsetof(typename Select::Storage, score) % (kWarpSize * sizeof(float)) == 0,
                  "whole lines of shared memory");
    const RowWriter<Policy> writer(params, head, token);
    const int chosen = Select{mine.select}.run(
        score, place, Policy::wanted(params),
        [&](int slot, float, int32_t block) { writer.output[row.begin + slot] = block; });
    writer.frame(row, chosen, lane_index(), kWarpSize);
  }

 private:
  // The block of an item as it is read, of the row Group::row() ...
  static FLASHINFER_MSA_DEVICE int place_read(int item) {
    return (item * kWarps + warp_index()) * Group::kMembers + Group::member();
  }
  // ... and as the row's own warp holds it.
  static FLASHINFER_MSA_DEVICE int place(int item) { return item * kWarpSize + lane_index(); }
};

}  // namespace flashinfer_msa
