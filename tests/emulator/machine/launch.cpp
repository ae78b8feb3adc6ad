// SPDX-License-Identifier: Apache-2.0
// Launches: a grid's clusters of blocks, one after another, and where a thread is in them.
#include <cstdlib>
#include <cstring>

#include "machine.hpp"

namespace flashinfer_msa {
namespace emulator {

Run run;
const Kernel* kernel;
std::deque<Thread> threads;
Cluster cluster;
int64_t serial;

namespace {

constexpr size_t kSharedAlignment = 16;  // of the launch: more is luck
constexpr size_t kSharedLimit = 227 << 10;
constexpr int kClusterLimit = 8;  // that every GPU with clusters has
constexpr int64_t kGridLimitX = 0x7fffffff, kGridLimitY = 0xffff;

std::deque<Scope> scopes;

Scope* add_scope(const char* name, int first, int size) {
  scopes.push_back({name, first, size});
  return &scopes.back();
}

void add_block(int64_t index, int rank) {
  // Exactly as large as asked for, and full of what a score must not be mistaken for: NaN, huge or
  // zero. A kernel may read what it has not written, as long as it does not use it.
  constexpr unsigned char kJunk[] = {0xff, 0x7f, 0x00};
  auto* storage = static_cast<unsigned char*>(std::malloc(kernel->storage));
  std::memset(storage, kJunk[(run.seed + serial + rank) % sizeof(kJunk)], kernel->storage);
  cluster.blocks.push_back({index, rank, storage, kernel->threads});
  const int first = rank * kernel->threads;
  Scope* all = add_scope("block", first, kernel->threads);
  for (int i = 0; i < kernel->threads; ++i) {
    const int id = first + i;
    Scope* warp = i % kWarpSize ? threads.back().warp : add_scope("warp", id, kWarpSize);
    threads.push_back({id, i, &cluster.blocks.back(), warp, all, stack_for(id)});
  }
}

void run_cluster(int64_t first) {
  ++serial;
  threads.clear(), scopes.clear();
  cluster = {};
  for (int rank = 0; rank < kernel->shares; ++rank) add_block(first + rank, rank);
  cluster.awaited = static_cast<int>(threads.size());
  watch_shared();
  run_threads();
  for (const Block& block : cluster.blocks) std::free(block.storage);
}

}  // namespace

int thread() { return current->index; }
int block_x() { return static_cast<int>(current->block->index % kernel->grid_x); }
int block_y() { return static_cast<int>(current->block->index / kernel->grid_x); }

void wait_for_producer() { current->waited = true; }

bool is_mutant(int number) {
  static const char* text = std::getenv("FLASHINFER_MSA_MUTANT");
  static const int chosen = text == nullptr ? 0 : std::atoi(text);
  return chosen == number;
}

void prepare(const char* name, int threads, size_t storage) {
  run.prepared.push_back(std::to_string(threads) + " " + std::to_string(storage) + " " + name);
}

void launch(const Kernel& launched) {
  if (run.params != nullptr) {
    std::memcpy(run.params, launched.params, launched.params_size);
    return;
  }
  kernel = &launched;
  run.launched.push_back(launched.name);
  const int64_t grid_blocks = launched.grid_x * launched.grid_y;
  if (launched.grid_x < 1 || launched.grid_x > kGridLimitX || launched.grid_y < 1 ||
      launched.grid_y > kGridLimitY) {
    fail("a grid of " + std::to_string(launched.grid_x) + " x " + std::to_string(launched.grid_y));
  }
  if (launched.shares < 1 || launched.shares > kClusterLimit ||
      launched.grid_x % launched.shares != 0) {
    fail("clusters of " + std::to_string(launched.shares) + " blocks");
  }
  if (launched.threads < 1 || launched.threads > 1024 || launched.threads % kWarpSize != 0) {
    fail(std::to_string(launched.threads) + " threads");
  }
  if (launched.storage > kSharedLimit || launched.alignment > kSharedAlignment) {
    fail(std::to_string(launched.storage) + " bytes of shared memory, aligned to " +
         std::to_string(launched.alignment));
  }
  seed_random(run.seed);
  for (int64_t first = 0; first < grid_blocks; first += kernel->shares) run_cluster(first);
  kernel = nullptr;
}

}  // namespace emulator
}  // namespace flashinfer_msa
