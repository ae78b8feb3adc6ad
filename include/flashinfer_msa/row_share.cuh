// SPDX-License-Identifier: Apache-2.0
// Cluster scope: thread blocks that share rows, each with a stretch of their blocks. What one of
// them found best it sends to the row's owner among them, whose shared memory it can write.
#pragma once

#include "row_group.cuh"
#include "warp_narrow.cuh"

namespace flashinfer_msa {

template <int kTopK, int kRows, int kSharesT>
struct RowShare {
  static constexpr bool kMany = true;                             // candidates, of all parts
  static constexpr int kShares = kSharesT;                        // thread blocks of a row
  static constexpr int kOwned = (kRows + kShares - 1) / kShares;  // the most rows of one of them
  // What one of them may send of a row: its best, or where all is ranked at once, a few more.
  static constexpr int kRanked = ranked_per_lane(kTopK, kMany) * kWarpSize / kShares;
  static constexpr int kMost = kRanked > kTopK ? kRanked : kTopK;

  struct Part {  // in the order of the blocks
    float score[kMost];
    int32_t block[kMost];
    int32_t count;
  };
  struct PartWriter {
    Part& part;

    FLASHINFER_MSA_DEVICE void operator()(int slot, float score, int32_t block) const {
      part.score[slot] = score;
      part.block[slot] = block;
    }
  };
  struct Row {  // that this thread block owns
    Part part[kShares];
    CandidateList<kTopK, kShares * kMost, kMany> all;
  };
  struct Storage {
    Row row[kShares > 1 ? kOwned : 0];
  };
  static constexpr int kGivenUp = -1;  // in place of a count
  Storage& smem;

  static FLASHINFER_MSA_DEVICE int share() { return kShares == 1 ? 0 : block_x() % kShares; }
  // The first of a thread block's tokens.
  static FLASHINFER_MSA_DEVICE int first_token() { return block_x() / kShares * kRows; }

  // All threads call each: from the first on others may send to this thread block, from the second
  // on this one to others.
  static FLASHINFER_MSA_DEVICE void get_ready() {
    if (kShares > 1) arrive_cluster();
  }
  static FLASHINFER_MSA_DEVICE void wait_until_ready() {
    if (kShares > 1) wait_cluster();
  }

  // Where this share's best of row `r` go.
  FLASHINFER_MSA_DEVICE Part& part_of(int r) const {
    return *of_block(&smem.row[r / kShares].part[share()], r % kShares);
  }

  // One warp: sends what a list has of row `r`, all of it or its best.
  template <class List>
  FLASHINFER_MSA_DEVICE void send(int r, List& list, int count, int wanted) const {
    Part& part = part_of(r);
    const PartWriter put{part};
    if (count > kMost) {
      count = list.emit(count, wanted, put);
    } else {
      for (int i = lane_index(); i < count; i += kWarpSize) put(i, list.score[i], list.block[i]);
    }
    if (lane_index() == 0) part.count = count;
  }

  // The same, where a thread block cannot tell which are the best.
  FLASHINFER_MSA_DEVICE void give_up(int r) const {
    if (lane_index() == 0) part_of(r).count = kGivenUp;
  }
  // Whether one has given up all its rows, in the end.
  FLASHINFER_MSA_DEVICE bool someone_gave_up() const {
    bool has = false;
    FLASHINFER_MSA_UNROLL
    for (int k = 0; k < kShares; ++k) has |= smem.row[0].part[k].count == kGivenUp;
    return has;
  }

  // All threads call when they have sent: then the owner of a row can read its parts.
  static FLASHINFER_MSA_DEVICE void exchange() {
    arrive_cluster();
    wait_cluster();
  }

  // One warp of the owner: writes the best of all parts.
  template <class Writer, class RowT>
  FLASHINFER_MSA_DEVICE void write_best(int r, const Writer& writer, const RowT& row,
                                        int wanted) const {
    Row& one = smem.row[r / kShares];
    int total = 0;
    FLASHINFER_MSA_UNROLL
    for (int k = 0; k < kShares; ++k) {
      const Part& part = one.part[k];
      const int count = part.count;
      FLASHINFER_MSA_UNROLL
      for (int i = 0; i < kMost; i += kWarpSize) {
        const int at = i + lane_index();
        if (at < count) {
          one.all.score[total + at] = part.score[at];
          one.all.block[total + at] = part.block[at];
        }
      }
      total += count;
    }
    sync_warp();
    one.all.write_best(writer, row, total, wanted);
  }

  // A warp a row: writes those of a group that this thread block owns.
  template <class Group, class Policy, class RowT>
  FLASHINFER_MSA_DEVICE void write_owned(const Params& params, int head, const RowT& row) const {
    const int r = warp_index() * kShares + share(), token = first_token() + r;
    if (r >= kRows || token >= params.tokens) return;
    write_best(r, RowWriter<Policy>(params, head, token), Group::of_row(row, r),
               Policy::wanted(params));
  }

  // Writes the rows of a group, a lane's being `row`, of which each thread block has lists: list(r)
  // with count(r) candidates, asked for by whole warps. All threads call.
  template <class Group, int kWarps, class Policy, class RowT, class List, class Count>
  FLASHINFER_MSA_DEVICE void write_rows(const Params& params, int head, const RowT& row,
                                        const List& list, const Count& count) const {
    const int wanted = Policy::wanted(params), first = first_token();
    if constexpr (kShares == 1) {
      Group::template for_each_row<kWarps>([&](int r) {
        if (first + r >= params.tokens) return;
        list(r).write_best(RowWriter<Policy>(params, head, first + r), Group::of_row(row, r),
                           count(r), wanted);
      });
    } else {
      wait_until_ready();
      Group::template for_each_row<kWarps>([&](int r) { send(r, list(r), count(r), wanted); });
      exchange();
      write_owned<Group, Policy>(params, head, row);
    }
  }
};

}  // namespace flashinfer_msa
