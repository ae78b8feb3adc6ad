// SPDX-License-Identifier: Apache-2.0
// The emulated machine: what its parts share. A thread is a fibre (fibres.cpp), a barrier or a
// collective is a rendezvous (rendezvous.cpp), and every access to memory is checked (memory.cpp).
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "device.hpp"
#include "runtime.hpp"

namespace flashinfer_msa {
namespace emulator {

constexpr int kWarpSize = 32;
constexpr size_t kStackSize = 256 << 10;

// The threads that take part in a barrier or a collective.
struct Scope {
  const char* name;
  int first, size;  // threads, consecutive
  int arrived = 0, left = 0;
  const char* what = nullptr;  // where the waiting threads wait
  Site site = {};
  unsigned epoch = 0;  // barriers passed
  Lanes brought = {}, shown = {};
};

struct Block {
  int64_t index;  // x first
  int rank;       // in its cluster
  unsigned char* storage;
  int alive;  // threads
};

// The thread blocks that run together. A phase ends when every thread there still is has arrived.
struct Cluster {
  std::deque<Block> blocks;
  unsigned phase = 0;  // that have ended
  int awaited = 0;     // threads that have not arrived in this one
};

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  size_t size;
};

// Where a fibre goes on.
struct Place {
  bool has_begun = false;
  jmp_buf jump = {};  // if it has; else, and for AddressSanitizer, the context
  ucontext_t context = {};
};

struct Thread {
  int id;     // in the cluster
  int index;  // in the block
  Block* block;
  Scope *warp, *all;
  unsigned char* stack;
  unsigned arrivals = 0, passed = 0;  // at the cluster's phases, and of those
  const char* awaits = nullptr;       // the next of them, and where
  Site site = {};
  bool finished = false;
  Scope* waits = nullptr;
  bool waited = false;  // for the kernel before this one
  void* fake_stack = nullptr;
  std::vector<Copy> open = {};                // asynchronous copies of no group yet
  std::deque<std::vector<Copy>> groups = {};  // under way
  Place place = {};
};

inline bool is_within(uintptr_t p, const void* begin, size_t size) {
  return p - reinterpret_cast<uintptr_t>(begin) < size;
}

// launch.cpp: the cluster that runs
extern const Kernel* kernel;
extern std::deque<Thread> threads;
extern Cluster cluster;
extern int64_t serial;  // counts clusters, over all launches

// fibres.cpp
extern Thread* current;  // nullptr between two threads' turns
unsigned char* stack_for(size_t i);
void run_threads();  // each of the cluster, from its start to its end
void set_ready(const Thread& t);
// Back to the scheduler, until it picks this thread again; never, if the thread has finished.
void suspend(bool finished = false);
void seed_random(uint64_t seed);
uint64_t next_random();

// rendezvous.cpp
void leave(Scope& scope);

// cluster.cpp
void leave_cluster();
// The block of the cluster in whose shared memory that lies, or nullptr.
Block* block_at(uintptr_t p);
void expect_block(const Block& other, uintptr_t pc);  // may touch it now

// memory.cpp
void watch_shared();
void check_access(uintptr_t p, size_t size, bool writes, uintptr_t pc);
// Marks shared memory as the target of a copy that is under way, or no more.
void mark_copy(const Copy& copy, bool under_way, uintptr_t pc);

// copies.cpp
void expect_no_copies();  // under way, when the thread ends

// report.cpp
std::string text(const Site& site);
std::string text(const char* what, const Site& site);
std::string text(const Thread& t);

}  // namespace emulator
}  // namespace flashinfer_msa
