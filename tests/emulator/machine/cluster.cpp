// SPDX-License-Identifier: Apache-2.0
// Thread blocks of a cluster: they arrive, wait, and reach each other's shared memory.
#include <cstdio>

#include "machine.hpp"

namespace flashinfer_msa {
namespace emulator {

namespace {

// A thread that the phase waited for is there, or gone.
void count_down() {
  if (--cluster.awaited > 0) return;
  ++cluster.phase;
  for (Thread& t : threads) {
    cluster.awaited += !t.finished;
    if (t.awaits != nullptr) set_ready(t);
  }
}

}  // namespace

void arrive_cluster(Site site) {
  if (current->arrivals != current->passed) {
    fail("has not waited since it arrived, in " + text("arrive_cluster", site));
  }
  meet("arrive_cluster", site, 0);  // warps do it as one
  ++current->arrivals;
  count_down();
}

void wait_cluster(Site site) {
  if (current->arrivals == current->passed) {
    fail("has not arrived, in " + text("wait_cluster", site));
  }
  meet("wait_cluster", site, 0);
  if (cluster.phase < current->arrivals) {
    current->awaits = "wait_cluster";
    current->site = site;
    suspend();
    current->awaits = nullptr;
  }
  ++current->passed;
}

void leave_cluster() {
  current->finished = true;
  --current->block->alive;
  if (current->arrivals == cluster.phase) count_down();
}

Block* block_at(uintptr_t p) {
  if (is_within(p, current->block->storage, kernel->storage)) return current->block;
  for (Block& other : cluster.blocks) {
    if (is_within(p, other.storage, kernel->storage)) return &other;
  }
  return nullptr;
}

void expect_block(const Block& other, uintptr_t pc) {
  if (&other == current->block) return;
  char at[32];
  std::snprintf(at, sizeof(at), " at 0x%zx", static_cast<size_t>(pc));
  if (current->passed == 0) {
    fail(std::string("touches another block of its cluster, which may not have started,") + at);
  }
  if (other.alive == 0) {
    fail(std::string("touches another block of its cluster, which has ended,") + at);
  }
}

const void* of_block(const void* p, int rank) {
  const Block& own = *current->block;
  if (!is_within(reinterpret_cast<uintptr_t>(p), own.storage, kernel->storage) || rank < 0 ||
      rank >= kernel->shares) {
    fail("asks for another block's copy of what is not in shared memory, or of no block");
  }
  return cluster.blocks[rank].storage + (static_cast<const unsigned char*>(p) - own.storage);
}

}  // namespace emulator
}  // namespace flashinfer_msa
