// SPDX-License-Identifier: Apache-2.0
// Warp scope: brings scores of eight adjacent tokens to shared memory, a tile at a time, while the
// warp works on earlier ones. Each member of a row's quad reads a stretch of the tile.
//
// A tile has the order of global memory, but for the blocks of four in a row, which change places
// by member, so that members which read the same item of their stretches touch different banks.
#pragma once

#include "quad_sort.cuh"
#include "tile_ring.cuh"

namespace flashinfer_msa {

template <class Score, int kItems, int kTiles>
struct QuadRingStorage {
  alignas(16) Score tile[kTiles][kItems * kWarpSize];
};

template <class Score, int kItems, int kTiles>
struct QuadRing {
  static constexpr int kBlocks = Quads::kMembers * kItems;  // of a tile
  static constexpr int kChunk = 16 / sizeof(Score);         // scores that a lane copies at once
  static constexpr int kChunks = Quads::kRows / kChunk;     // of a block
  static constexpr int kLines = kWarpSize / kChunks;        // blocks that the warp copies at once
  static_assert(kItems % Quads::kMembers == 0 && kBlocks % kLines == 0, "whole copies");
  using Storage = QuadRingStorage<Score, kItems, kTiles>;

  FLASHINFER_MSA_DEVICE QuadRing(Storage& storage, const Params& p, int head, int first_token)
      : storage_(storage),
        next_(static_cast<const Score*>(p.scores) + head * p.head_stride +
              first_token * p.token_stride + line() * p.block_stride + at()),
        block_stride_(p.block_stride),
        rows_(p.tokens - first_token),
        blocks_(p.blocks),
        whole_(in_register(p.aligned && rows_ >= Quads::kRows)) {}

  // Starts to copy the next tile to `t`, which all lanes have finished reading.
  FLASHINFER_MSA_DEVICE void copy_next(int t) {
    if (whole_ && blocks_ >= kBlocks) {
      const Score* from = next_;
      FLASHINFER_MSA_UNROLL
      for (int b = 0; b < kBlocks; b += kLines, from += kLines * block_stride_) {
        copy_async<16>(&storage_.tile[t][index(b + line(), at())], from);
      }
    } else {
      copy_edge(t);
    }
    next_ += kBlocks * block_stride_;
    blocks_ -= kBlocks;
  }

  // Leaves out so many tiles, or goes back.
  FLASHINFER_MSA_DEVICE void skip(int tiles) {
    next_ += int64_t{tiles} * kBlocks * block_stride_;
    blocks_ -= tiles * kBlocks;
  }

  // The lane's stretch of tile `t`.
  FLASHINFER_MSA_DEVICE void read(int t, float (&v)[kItems]) const {
    const Score* stretch =
        &storage_.tile[t][Quads::member() * kItems * Quads::kRows + Quads::row()];
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < Quads::kMembers; ++i) {
      const Score* items = stretch + (i ^ Quads::member()) * Quads::kRows;
      FLASHINFER_MSA_UNROLL
      for (int j = 0; j < kItems; j += Quads::kMembers) {
        v[j + i] = static_cast<float>(items[j * Quads::kRows]);
      }
    }
  }

  // One score of it.
  FLASHINFER_MSA_DEVICE float score(int t, int item) const {
    const int place = Quads::member() * kItems + (item ^ Quads::member());
    return static_cast<float>(storage_.tile[t][place * Quads::kRows + Quads::row()]);
  }

 private:
  Storage& storage_;
  const Score* next_;  // the lane's first score of the next tile
  int64_t block_stride_;
  int rows_, blocks_;  // that exist, the latter counted from the next tile's first
  int whole_;          // whether all rows exist, and a block's lie at a multiple of 16 bytes

  // Where the lane begins to copy.
  static FLASHINFER_MSA_DEVICE int line() { return lane_index() / kChunks; }
  static FLASHINFER_MSA_DEVICE int at() { return lane_index() % kChunks * kChunk; }

  // Score by score; a row that does not exist gets those of the last that does.
  FLASHINFER_MSA_DEVICE void copy_edge(int t) const {
    constexpr int kAtOnce = 8;
    constexpr int kStep = Quads::kMembers;
    const int row = Quads::row() < rows_ ? Quads::row() : rows_ - 1;
    const Score* from = next_ + (Quads::member() - line()) * block_stride_ - at() + row;
    const int64_t stride = kStep * block_stride_;
    FLASHINFER_MSA_UNROLL_BY(1)
    for (int b = Quads::member(); b < kBlocks; b += kAtOnce * kStep, from += kAtOnce * stride) {
      copy_scores<kAtOnce>(from, stride, [&](int i) -> ScorePlace<Score> {
        const int block = b + i * kStep;
        return {&storage_.tile[t][index(block, Quads::row())], block < blocks_, 0};
      });
    }
  }

  static FLASHINFER_MSA_DEVICE int index(int block, int row) {
    return (block ^ block / kItems) * Quads::kRows + row;
  }
};

}  // namespace flashinfer_msa
