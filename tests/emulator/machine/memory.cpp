// SPDX-License-Identifier: Apache-2.0
// A check of every access to memory.
//
// The kernels are compiled with -fsanitize=thread but linked with the functions below instead of
// that sanitizer's own, so every load and store that is not on the thread's stack arrives here.
// Shared memory is checked by happens-before: two accesses of different threads to one place, one
// of them a write, need a barrier of a common scope between them, whatever the schedule: in a
// cluster one must have arrived since, and the other waited for that. As on the GPU, votes,
// reductions and shuffles are no barriers. (With AddressSanitizer these functions are not called:
// that build looks for other faults.)
#include <cstdio>

#include "machine.hpp"

extern "C" char __executable_start, _end;  // of the linker: this program's image

namespace flashinfer_msa {
namespace emulator {

namespace {

constexpr size_t kGranule = 2;  // bytes of shared memory that are watched together

// Who touched a granule, and in which epochs of its scopes.
struct Access {
  const Thread* thread = nullptr;
  unsigned warp = 0, all = 0, arrivals = 0, passed = 0;
  uintptr_t pc = 0;
};

struct Granule {
  int64_t serial = -1;  // of the cluster that it speaks of
  Access write;
  std::vector<Access> reads;  // since the write
  Access copy;                // asynchronous, and under way
};

std::vector<Granule> granules;  // block after block

size_t granules_of_block() { return (kernel->storage + kGranule - 1) / kGranule; }
Granule* granules_of(const Block& block) { return &granules[block.rank * granules_of_block()]; }

std::string hex(uintptr_t x) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%zx", static_cast<size_t>(x));
  return text;
}

std::string text(const Access& a) { return text(*a.thread) + " at " + hex(a.pc); }

bool is_ordered(const Access& before, const Access& now) {
  const Thread &a = *before.thread, &b = *now.thread;
  return &a == &b || (a.warp == b.warp && before.warp != now.warp) ||
         (a.all == b.all && before.all != now.all) || before.arrivals < now.passed;
}

[[noreturn]] void fail_race(const char* kind, const Access& before, const Access& now,
                            const Block& block, size_t offset) {
  fail(std::string("race, ") + kind + ": byte " + std::to_string(offset) +
       " of the shared memory of block " + std::to_string(block.index) + ", " + text(before) +
       " and " + text(now) + ", with no barrier between them");
}

void check_shared(const Block& block, size_t offset, size_t size, bool writes, uintptr_t pc) {
  expect_block(block, pc);
  if (size < kGranule || offset % kGranule != 0 || offset + size > kernel->storage) {
    fail("touches shared memory across its end or in bytes smaller than it is watched in, at " +
         hex(pc));
  }
  const Access now = {current,           current->warp->epoch, current->all->epoch,
                      current->arrivals, current->passed,      pc};
  for (size_t i = offset / kGranule; i < (offset + size) / kGranule; ++i) {
    Granule& g = granules_of(block)[i];
    if (g.serial != serial) {
      g.serial = serial;
      g.write = g.copy = {};
      g.reads.clear();
    }
    if (g.copy.thread != nullptr) fail_race("copy under way", g.copy, now, block, offset);
    if (g.write.thread != nullptr && !is_ordered(g.write, now)) {
      fail_race(writes ? "write after write" : "read after write", g.write, now, block, offset);
    }
    if (writes) {
      for (const Access& read : g.reads) {
        if (!is_ordered(read, now)) fail_race("write after read", read, now, block, offset);
      }
      g.reads.clear();
      g.write = now;
    } else {
      // What a barrier of the block separates from now, it separates from all that follows in it.
      const bool alone = kernel->shares == 1;
      if (alone && !g.reads.empty() && g.reads.back().all != now.all) g.reads.clear();
      g.reads.push_back(now);
    }
  }
}

void check_buffer(Buffer& buffer, size_t offset, size_t size, bool writes, uintptr_t pc) {
  if (!current->waited) {
    fail(std::string(writes ? "writes " : "reads ") + buffer.name +
         " before wait_for_producer, at " + hex(pc));
  }
  for (size_t i = offset / buffer.element; i <= (offset + size - 1) / buffer.element; ++i) {
    if (writes != buffer.output || !buffer.allowed[i]) {
      const char* why = writes != buffer.output ? "" : writes ? " once more" : " between the rows";
      fail(std::string(writes ? "writes" : "reads") + " element " + std::to_string(i) + " of " +
           buffer.name + why + ", at " + hex(pc));
    }
    if (writes) buffer.allowed[i] = 0;
  }
}

}  // namespace

void watch_shared() { granules.resize(kernel->shares * granules_of_block()); }

void mark_copy(const Copy& copy, bool under_way, uintptr_t pc) {
  const Block& block = *current->block;
  const size_t first = static_cast<size_t>(copy.to - block.storage) / kGranule;
  for (size_t i = first; i < first + copy.size / kGranule; ++i) {
    Access& under = granules_of(block)[i].copy;
    under = {};
    under.thread = under_way ? current : nullptr;
    under.pc = pc;
  }
}

void check_access(uintptr_t p, size_t size, bool writes, uintptr_t pc) {
  if (current == nullptr || is_within(p, current->stack, kStackSize)) return;
  if (const Block* block = block_at(p)) {
    if (run.policy == Policy::kRandom && next_random() % 8 == 0) {
      set_ready(*current);
      suspend();
    }
    const size_t offset = p - reinterpret_cast<uintptr_t>(block->storage);
    return check_shared(*block, offset, size, writes, pc);
  }
  for (Buffer& buffer : run.buffers) {
    if (p - buffer.begin < buffer.allowed.size() * buffer.element) {
      return check_buffer(buffer, p - buffer.begin, size, writes, pc);
    }
  }
  const char* image = &__executable_start;
  const bool constant = is_within(p, kernel->params, kernel->params_size) ||
                        is_within(p, image, static_cast<size_t>(&_end - image));
  if (writes || !constant) {
    fail(std::string(writes ? "writes" : "reads") + " memory that is not the call's, at " +
         hex(pc));
  }
}

void touch(const void* p, size_t size, bool writes) {
  check_access(reinterpret_cast<uintptr_t>(p), size, writes,
               reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
}

void expect_aligned(const void* p, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(p) % alignment != 0) {
    fail("loads a vector of " + std::to_string(alignment) + " bytes that is not aligned, at " +
         hex(reinterpret_cast<uintptr_t>(__builtin_return_address(0))));
  }
}

}  // namespace emulator
}  // namespace flashinfer_msa

// What the compiler calls at each access. The size is in the name.
#define HOOK(name, size, writes)                                   \
  extern "C" void name(void* p) {                                  \
    flashinfer_msa::emulator::check_access(                        \
        reinterpret_cast<uintptr_t>(p), size, writes,              \
        reinterpret_cast<uintptr_t>(__builtin_return_address(0))); \
  }
#define HOOKS(size)                              \
  HOOK(__tsan_read##size, size, false)           \
  HOOK(__tsan_write##size, size, true)           \
  HOOK(__tsan_unaligned_read##size, size, false) \
  HOOK(__tsan_unaligned_write##size, size, true)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
extern "C" void __tsan_read_range(void* p, size_t size) {
  flashinfer_msa::emulator::touch(p, size, false);
}
extern "C" void __tsan_write_range(void* p, size_t size) {
  flashinfer_msa::emulator::touch(p, size, true);
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
