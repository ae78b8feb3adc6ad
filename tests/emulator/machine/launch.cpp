// SPDX-License-Identifier: Apache-2.0
// Launches: a grid's blocks, one after another, and where a thread is in them.
#include <cstdlib>
#include <cstring>

#include "machine.hpp"

namespace flashinfer_msa {
namespace emulator {

Run run;
const Kernel* kernel;
std::deque<Thread> threads;
Block block;
int64_t serial;

namespace {

constexpr size_t kSharedAlignment = 16;  // of the launch: more is luck
constexpr size_t kSharedLimit = 227 << 10;
constexpr int64_t kGridLimitX = 0x7fffffff, kGridLimitY = 0xffff;

std::deque<Scope> scopes;

Scope* add_scope(const char* name, int first, int size) {
  scopes.push_back({name, first, size});
  return &scopes.back();
}

void start_block(int64_t index) {
  ++serial;
  threads.clear(), scopes.clear();
  // Exactly as large as asked for, and full of what a score must not be mistaken for: NaN, huge or
  // zero. A kernel may read what it has not written, as long as it does not use it.
  constexpr unsigned char kJunk[] = {0xff, 0x7f, 0x00};
  auto* storage = static_cast<unsigned char*>(std::malloc(kernel->storage));
  std::memset(storage, kJunk[(run.seed + serial) % sizeof(kJunk)], kernel->storage);
  block = {index, storage};
  Scope* all = add_scope("block", 0, kernel->threads);
  for (int i = 0; i < kernel->threads; ++i) {
    Scope* warp = i % kWarpSize ? threads.back().warp : add_scope("warp", i, kWarpSize);
    threads.push_back({i, warp, all, stack_for(i)});
  }
  watch_shared();
}

}  // namespace

int thread() { return current->index; }
int block_x() { return static_cast<int>(block.index % kernel->grid_x); }
int block_y() { return static_cast<int>(block.index / kernel->grid_x); }

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
  if (launched.threads < 1 || launched.threads > 1024 || launched.threads % kWarpSize != 0) {
    fail(std::to_string(launched.threads) + " threads");
  }
  if (launched.storage > kSharedLimit || launched.alignment > kSharedAlignment) {
    fail(std::to_string(launched.storage) + " bytes of shared memory, aligned to " +
         std::to_string(launched.alignment));
  }
  seed_random(run.seed);
  for (int64_t index = 0; index < grid_blocks; ++index) {
    start_block(index);
    run_threads();
    std::free(block.storage);
  }
  kernel = nullptr;
}

}  // namespace emulator
}  // namespace flashinfer_msa
