// SPDX-License-Identifier: Apache-2.0
// What the kernels that miss a target read and write, in their own order and with as much in
// flight, and nothing else: no kernel that reads so can take less. Built from their own parts.
#include <flashinfer_msa/launch.cuh>
#include <flashinfer_msa/row_group.cuh>
#include <flashinfer_msa/tile_ring.cuh>
#include <flashinfer_msa/topk_select.cuh>

namespace flashinfer_msa {

using AnyPolicy = Policy<float, 16, 0, 1, true>;

// A group of rows side by side, all scores of a lane asked for at once (RowPerWarp, RowsByHalves).
template <int kRowsT, int kWarps, int kItems, bool kStretches>
struct ReadGroups {
  using Group = RowGroup<kRowsT>;
  static constexpr int kRows = kRowsT;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kShares = 1;
  struct Storage {
    float best[kThreads];
  };
  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_tokens(p, kRows); }

  FLASHINFER_MSA_DEVICE void run() {
    const int head = params.first_head + block_y(), first_token = block_x() * kRows;
    const int token = existing_token(params, first_token + Group::row());
    const RowScores<AnyPolicy> scores(params, head, token);
    const int warp = warp_index(), member = Group::member();
    const int first =
        kStretches ? (warp * Group::kMembers + member) * kItems : warp * Group::kMembers + member;
    const int64_t step = (kStretches ? 1 : kWarps * Group::kMembers) * params.block_stride;
    const float* next = scores.of(first);
    wait_for_producer(next);
    float score[kItems], best = no_score();
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) score[i] = load_score(next + i * step);
    FLASHINFER_MSA_UNROLL
    for (int i = 0; i < kItems; ++i) best = larger(best, score[i]);
    smem.best[thread_index()] = best;
    sync_block();
    for (int r = warp; r < kRows && first_token + r < params.tokens; r += kWarps) {
      const RowWriter<AnyPolicy> writer(params, head, first_token + r);
      const int slot = lane_index();
      if (slot < writer.topk) writer.output[slot] = smem.best[r * kWarpSize + slot] > 0.0f;
    }
  }
};

// A row a lane, tiles through shared memory (RowPerLane).
template <int kWarps, int kTiles>
struct ReadTiles {
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kShares = 1;
  using Ring = TileRing<float, false, kTiles, false, kWarpSize>;
  struct Storage {
    typename Ring::Storage ring[kWarps];
  };
  const Params& params;
  Storage& smem;

  static Grid grid(const Params& p) { return grid_of_tokens(p, kWarpSize); }

  FLASHINFER_MSA_DEVICE void run() {
    const int head = params.first_head + block_y(), first_token = block_x() * kWarpSize;
    wait_for_producer(params.scores);
    Ring ring(smem.ring[warp_index()], params, head, first_token);
    const int tiles = (params.blocks + kWarps * kTileBlocks - 1) / (kWarps * kTileBlocks);
    ring.skip(warp_index() * tiles);
    for (int t = 0; t < kTiles; ++t) {
      if (t < tiles) ring.copy_next(t);
      commit_copies();
    }
    for (int t = 0, place = 0; t < tiles; ++t) {
      wait_copies<kTiles - 1>();
      sync_warp();
      if (t + kTiles < tiles) ring.copy_next(place);
      commit_copies();
      place = place + 1 == kTiles ? 0 : place + 1;
    }
    wait_copies<0>();
    sync_block();
    constexpr int kTopK = AnyPolicy::kTopK, kAtOnce = kThreads / kTopK;
    const int slot = thread_index() % kTopK;
    for (int r = thread_index() / kTopK; r < kWarpSize; r += kAtOnce) {
      if (first_token + r >= params.tokens) return;
      const RowWriter<AnyPolicy> writer(params, head, first_token + r);
      writer.output[slot] = smem.ring[0].tile[0][r * kTopK + slot] > 0.0f;
    }
  }
};

template <class Kernel>
cudaError_t read(const Params& params, cudaStream_t stream) {
  static const cudaError_t ready = prepare_kernel<Kernel>();
  return ready == cudaSuccess ? launch_kernel<Kernel>(params, stream) : ready;
}

}  // namespace flashinfer_msa

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int flashinfer_msa_abi_version() { return 1; }

// As which kernel of H, P, S scores (tokens together, whole groups and tiles) they are read.
EXPORT int bench_limit(const void* scores, int* output, int heads, int blocks, int tokens,
                       int kernel, void* on) {
  using namespace flashinfer_msa;
  Params params = {scores, nullptr, output, heads, blocks, tokens};
  params.head_stride = int64_t{blocks} * tokens;
  params.block_stride = tokens;
  params.token_stride = 1;
  params.topk = AnyPolicy::kTopK;
  params.aligned = tokens % 4 == 0;
  static int32_t features = 0;
  static const cudaError_t found = find_features<AnyPolicy>(features);
  if (found != cudaSuccess) return found;
  params.features = features;
  const auto stream = static_cast<cudaStream_t>(on);
  switch (kernel) {
    case 0:
      return read<ReadGroups<4, 4, 16, false>>(params, stream);
    case 1:
      return read<ReadGroups<8, 16, 128, true>>(params, stream);
    case 2:
      return read<ReadTiles<1, 4>>(params, stream);
    case 3:
      return read<ReadTiles<4, 3>>(params, stream);
    default:
      return cudaErrorInvalidValue;
  }
}
