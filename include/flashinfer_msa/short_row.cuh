// SPDX-License-Identifier: Apache-2.0
// Warp scope: one warp answers one row whose extent is short, whatever its width in memory. Servers
// allocate scores for the longest context, most rows of which are short.
#pragma once

#include "block_select.cuh"

namespace flashinfer_msa {

template <class Policy, int kItemsT = 4>
struct ShortRow {
  static constexpr int kItems = kItemsT;  // scores a lane
  static constexpr int kBlocks = kItems * kWarpSize;
  using Select = BlockSelect<Policy::kTopK, 1, kItems>;
  using Storage = typename Select::Storage;

  static FLASHINFER_MSA_DEVICE void run(const Params& params, int head, int token,
                                        const Row<Policy>& row, Storage& smem) {
    const RowScores<Policy> scores(params, head, token);
    const RowWriter<Policy> writer(params, head, token);
    float score[kItems];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) {
      score[i] = row.has(place(i)) ? load_score(scores.of(place(i))) : no_score();
    }
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) score[i] = nan_as_infinity(score[i]);
    const int chosen = Select{smem}.run(
        score, [](int i) { return place(i); }, Policy::wanted(params),
        [&](int slot, float, int32_t block) { writer.output[row.begin + slot] = block; });
    writer.frame(row, chosen, lane_index(), kWarpSize);
  }

  // The same for the rows of a group that a thread block shares, a warp each.
  template <class Group, int kWarps>
  static FLASHINFER_MSA_DEVICE void run_rows(const Params& params, int head, int first_token,
                                             const Row<Policy>& row,
                                             Storage (&smem)[Group::kRows]) {
    Group::template for_each_row<kWarps>([&](int r) {
      if (first_token + r < params.tokens) {
        run(params, head, first_token + r, Group::of_row(row, r), smem[r]);
      }
    });
  }

 private:
  static FLASHINFER_MSA_DEVICE int place(int item) { return item * kWarpSize + lane_index(); }
};

}  // namespace flashinfer_msa
