// SPDX-License-Identifier: Apache-2.0
// The emulated machine: fibres, rendezvous, and a check of every access to memory.
//
// The kernels are compiled with -fsanitize=thread but linked with the functions below instead of
// that sanitizer's own, so every load and store that is not on the thread's stack arrives here.
// Shared memory is checked by happens-before: two accesses of different threads to one place, one
// of them a write, need a barrier of a common scope between them, whatever the schedule. As on the
// GPU, votes, reductions and shuffles are no barriers. (With AddressSanitizer these functions are
// not called: that build looks for other faults.)
#include "runtime.hpp"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>

#include "device.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

extern "C" char __executable_start, _end;  // of the linker: this program's image

namespace flashinfer_msa {
namespace emulator {

Run run;

namespace {

constexpr int kWarpSize = 32;
constexpr size_t kStackSize = 256 << 10;
constexpr size_t kGuardSize = 64 << 10;  // a page at least, on every machine
constexpr size_t kGranule = 2;           // bytes of shared memory that are watched together
constexpr size_t kSharedAlignment = 16;  // of the launch: more is luck
constexpr size_t kSharedLimit = 227 << 10;
constexpr int64_t kGridLimitX = 0x7fffffff, kGridLimitY = 0xffff;

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
  unsigned char* storage;
};

struct Copy {
  unsigned char* to;
  const unsigned char* from;
  size_t size, valid;
};

struct Thread {
  int index;  // in the block
  Block* block;
  int rank;  // of the block in the cluster
  Scope *warp, *all, *cluster;
  unsigned char* stack;
  Scope* waits = nullptr;
  void* fake_stack = nullptr;
  std::vector<Copy> open = {};                // asynchronous copies of no group yet
  std::deque<std::vector<Copy>> groups = {};  // under way
  ucontext_t context = {};
};

// Who touched a granule, and in which epochs of its scopes.
struct Access {
  const Thread* thread = nullptr;
  unsigned warp = 0, all = 0, cluster = 0;
  uintptr_t pc = 0;
};

struct Granule {
  int64_t serial = -1;  // of the launch's cluster that it speaks of
  Access write;
  std::vector<Access> reads;  // since the write
  Access copy;                // asynchronous, and under way
};

const Kernel* kernel;
std::deque<Thread> threads;
std::deque<Scope> scopes;
std::deque<Block> blocks;
std::vector<std::vector<Granule>> granules;  // of each block of the cluster
std::vector<unsigned char*> stacks;
std::vector<uint64_t> ready;  // a bit a thread
int64_t serial;
int alive;
Thread* current;
ucontext_t scheduler;
uint64_t random_state;
#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_stack;
size_t scheduler_size;
#endif

uint64_t next_random() {  // xorshift
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

std::string hex(uintptr_t x) {
  char text[32];
  std::snprintf(text, sizeof(text), "0x%zx", static_cast<size_t>(x));
  return text;
}

std::string text(const Site& site) {
  return std::string(site.file) + ":" + std::to_string(site.line);
}

std::string text(const char* what, const Site& site) {
  return std::string(what) + " at " + text(site);
}

std::string text(const Thread& t) {
  return "thread " + std::to_string(t.index) + " of block " + std::to_string(t.block->index);
}

std::string text(const Access& a) { return text(*a.thread) + " at " + hex(a.pc); }

void set_ready(const Thread& t) {
  const int i = t.rank * kernel->threads + t.index;
  ready[i / 64] |= uint64_t{1} << i % 64;
}

int pick() {
  const int words = static_cast<int>(ready.size());
  const int start = run.policy == Policy::kRandom ? static_cast<int>(next_random() % words) : 0;
  for (int n = 0; n < words; ++n) {
    const int w = run.policy == Policy::kBackward ? words - 1 - n : (start + n) % words;
    if (ready[w] == 0) continue;
    int bit = __builtin_ctzll(ready[w]);
    if (run.policy == Policy::kBackward) bit = 63 - __builtin_clzll(ready[w]);
    if (run.policy == Policy::kRandom) {
      const int turn = static_cast<int>(next_random() % 64);
      const uint64_t turned = ready[w] >> turn | (turn ? ready[w] << (64 - turn) : 0);
      bit = (__builtin_ctzll(turned) + turn) % 64;
    }
    ready[w] &= ~(uint64_t{1} << bit);
    return w * 64 + bit;
  }
  return -1;
}

// Back to the scheduler, until it picks this thread again; never, if the thread has finished.
void suspend(bool finished = false) {
  Thread* self = current;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(finished ? nullptr : &self->fake_stack, scheduler_stack,
                                 scheduler_size);
#endif
  if (finished) setcontext(&scheduler);
  swapcontext(&self->context, &scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->fake_stack, &scheduler_stack, &scheduler_size);
#endif
}

void resume(Thread& t) {
  current = &t;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack;
  __sanitizer_start_switch_fiber(&fake_stack, t.stack, kStackSize);
#endif
  swapcontext(&scheduler, &t.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  current = nullptr;
}

void leave(Scope& scope) {
  ++scope.left;
  if (scope.arrived > 0) {
    fail("left the kernel while others of its " + std::string(scope.name) + " wait in " +
         text(scope.what, scope.site));
  }
}

void enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
  kernel->body(kernel->params, current->block->storage);
  while (!current->groups.empty()) {  // empty ones are nothing to wait for
    if (!current->groups.front().empty()) fail("leaves the kernel with copies under way");
    current->groups.pop_front();
  }
  if (!current->open.empty()) fail("leaves the kernel with copies under way");
  leave(*current->warp);
  leave(*current->all);
  leave(*current->cluster);
  --alive;
  suspend(true);
}

// Waits for the other threads of the scope; all must come to this very call.
void arrive(Scope& scope, const char* what, Site site, bool orders_memory) {
  if (scope.left > 0) {
    fail("waits in " + text(what, site) + " for threads of its " + scope.name +
         " that have left the kernel");
  }
  if (scope.arrived == 0) {
    scope.what = what;
    scope.site = site;
  } else if (scope.site.line != site.line || std::strcmp(scope.site.file, site.file) != 0 ||
             std::strcmp(scope.what, what) != 0) {
    fail("is in " + text(what, site) + " while others of its " + scope.name + " wait in " +
         text(scope.what, scope.site));
  }
  if (++scope.arrived < scope.size) {
    current->waits = &scope;
    suspend();
    current->waits = nullptr;
    return;
  }
  scope.arrived = 0;
  scope.epoch += orders_memory;
  scope.shown = scope.brought;
  for (int i = 0; i < scope.size; ++i) {
    if (&threads[scope.first + i] != current) set_ready(threads[scope.first + i]);
  }
  if (run.policy == Policy::kRandom) {
    set_ready(*current);
    suspend();
  }
}

unsigned char* stack_for(size_t i) {
  while (stacks.size() <= i) {
    void* p = mmap(nullptr, kGuardSize + kStackSize, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, kGuardSize, PROT_NONE) != 0) fail("no memory for stacks");
    stacks.push_back(static_cast<unsigned char*>(p) + kGuardSize);
  }
  return stacks[i];
}

Scope* add_scope(const char* name, int first, int size) {
  scopes.push_back({name, first, size});
  return &scopes.back();
}

void start(Thread& t) {
  getcontext(&t.context);
  t.context.uc_stack.ss_sp = t.stack;
  t.context.uc_stack.ss_size = kStackSize;
  t.context.uc_link = nullptr;
  makecontext(&t.context, enter, 0);
  set_ready(t);
}

void start_cluster(int64_t first_block) {
  ++serial;
  threads.clear(), scopes.clear(), blocks.clear();
  const int total = kernel->cluster * kernel->threads;
  ready.assign((total + 63) / 64, 0);
  granules.resize(kernel->cluster);
  Scope* cluster = add_scope("cluster", 0, total);
  for (int rank = 0; rank < kernel->cluster; ++rank) {
    // Exactly as large as asked for, and full of what a score must not be mistaken for: NaN, huge
    // or zero. A kernel may read what it has not written, as long as it does not use it.
    constexpr unsigned char kJunk[] = {0xff, 0x7f, 0x00};
    auto* storage = static_cast<unsigned char*>(std::malloc(kernel->storage));
    std::memset(storage, kJunk[(run.seed + serial) % sizeof(kJunk)], kernel->storage);
    blocks.push_back({first_block + rank, storage});
    granules[rank].resize((kernel->storage + kGranule - 1) / kGranule);
    const int first = rank * kernel->threads;
    Scope* all = add_scope("block", first, kernel->threads);
    for (int i = 0; i < kernel->threads; ++i) {
      Scope* warp = i % kWarpSize ? threads.back().warp : add_scope("warp", first + i, kWarpSize);
      threads.push_back({i, &blocks.back(), rank, warp, all, cluster, stack_for(first + i)});
      start(threads.back());
    }
  }
}

[[noreturn]] void fail_stuck() {
  for (const Thread& t : threads) {
    if (t.waits != nullptr) {
      fail(text(t) + " waits for ever in " + text(t.waits->what, t.waits->site));
    }
  }
  fail("no thread can go on");
}

bool is_ordered(const Access& before, const Access& now) {
  const Thread &a = *before.thread, &b = *now.thread;
  return &a == &b || (a.warp == b.warp && before.warp != now.warp) ||
         (a.all == b.all && before.all != now.all) || before.cluster != now.cluster;
}

[[noreturn]] void fail_race(const char* kind, const Access& before, const Access& now, int rank,
                            size_t offset) {
  fail(std::string("race, ") + kind + ": byte " + std::to_string(offset) +
       " of the shared memory of block " + std::to_string(blocks[rank].index) + ", " +
       text(before) + " and " + text(now) + ", with no barrier between them");
}

void check_shared(int rank, size_t offset, size_t size, bool writes, uintptr_t pc) {
  if (size < kGranule || offset % kGranule != 0 || offset + size > kernel->storage) {
    fail("touches shared memory across its end or in bytes smaller than it is watched in, at " +
         hex(pc));
  }
  const Access now = {current, current->warp->epoch, current->all->epoch, current->cluster->epoch,
                      pc};
  for (size_t i = offset / kGranule; i < (offset + size) / kGranule; ++i) {
    Granule& g = granules[rank][i];
    if (g.serial != serial) {
      g.serial = serial;
      g.write = g.copy = {};
      g.reads.clear();
    }
    if (g.copy.thread != nullptr) fail_race("copy under way", g.copy, now, rank, offset);
    if (g.write.thread != nullptr && !is_ordered(g.write, now)) {
      fail_race(writes ? "write after write" : "read after write", g.write, now, rank, offset);
    }
    if (writes) {
      for (const Access& read : g.reads) {
        if (!is_ordered(read, now)) fail_race("write after read", read, now, rank, offset);
      }
      g.reads.clear();
      g.write = now;
    } else {
      // What a barrier of the only block separates from now, it separates from all that follows.
      if (kernel->cluster == 1 && !g.reads.empty() && g.reads.back().all != now.all) {
        g.reads.clear();
      }
      g.reads.push_back(now);
    }
  }
}

void check_buffer(Buffer& buffer, size_t offset, size_t size, bool writes, uintptr_t pc) {
  for (size_t i = offset / buffer.element; i <= (offset + size - 1) / buffer.element; ++i) {
    if (writes != buffer.output || !buffer.allowed[i]) {
      const char* why = writes != buffer.output ? "" : writes ? " once more" : " between the rows";
      fail(std::string(writes ? "writes" : "reads") + " element " + std::to_string(i) + " of " +
           buffer.name + why + ", at " + hex(pc));
    }
    if (writes) buffer.allowed[i] = 0;
  }
}

// Marks shared memory as the target of a copy that is under way, or no more.
void mark_copy(const Copy& copy, bool under_way, uintptr_t pc) {
  const auto* storage = current->block->storage;
  const size_t first = static_cast<size_t>(copy.to - storage) / kGranule;
  for (size_t i = first; i < first + copy.size / kGranule; ++i) {
    granules[current->rank][i].copy = {under_way ? current : nullptr, 0, 0, 0, pc};
  }
}

bool is_within(uintptr_t p, const void* begin, size_t size) {
  return p - reinterpret_cast<uintptr_t>(begin) < size;
}

void check_access(uintptr_t p, size_t size, bool writes, uintptr_t pc) {
  if (current == nullptr || is_within(p, current->stack, kStackSize)) return;
  for (int rank = 0; rank < kernel->cluster; ++rank) {
    if (is_within(p, blocks[rank].storage, kernel->storage)) {
      const uintptr_t offset = p - reinterpret_cast<uintptr_t>(blocks[rank].storage);
      if (run.policy == Policy::kRandom && next_random() % 8 == 0) {
        set_ready(*current);
        suspend();
      }
      return check_shared(rank, offset, size, writes, pc);
    }
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

}  // namespace

void fail(const std::string& message) {
  std::string where = run.label;
  if (kernel != nullptr) where += std::string(", ") + kernel->name;
  if (current != nullptr) where += ": " + text(*current);
  std::fprintf(stderr, "%s: %s\n", where.c_str(), message.c_str());
  std::fflush(nullptr);
  _exit(3);
}

int thread() { return current->index; }
int block_x() { return static_cast<int>(current->block->index % kernel->grid_x); }
int block_y() { return static_cast<int>(current->block->index / kernel->grid_x); }
int cluster_rank() { return current->rank; }
void* storage_of(int rank) {
  if (rank < 0 || rank >= kernel->cluster) fail("names a block outside its cluster");
  return blocks[rank].storage;
}

Lanes meet(const char* what, Site site, uint64_t value) {
  Scope& warp = *current->warp;
  warp.brought.value[current->index % kWarpSize] = value;
  arrive(warp, what, site, false);
  return warp.shown;
}
void sync_warp(Site site) { arrive(*current->warp, "sync_warp", site, true); }
void sync_block(Site site) { arrive(*current->all, "sync_block", site, true); }
void sync_cluster(Site site) { arrive(*current->cluster, "sync_cluster", site, true); }

// To other threads a copy is a write from its start to the end of the wait for it.
void copy_async(void* to, const void* from, size_t size, size_t valid, Site site) {
  const Copy copy = {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from), size,
                     valid};
  if (!is_within(reinterpret_cast<uintptr_t>(to), current->block->storage, kernel->storage) ||
      copy.valid > size) {
    fail("copies to no shared memory, or too much, at " + text(site));
  }
  expect_aligned(to, size);
  expect_aligned(from, size);
  const auto pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  check_access(reinterpret_cast<uintptr_t>(to), size, true, pc);
  if (valid > 0) check_access(reinterpret_cast<uintptr_t>(from), valid, false, pc);
  mark_copy(copy, true, pc);
  current->open.push_back(copy);
}

void commit_copies() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}

void wait_copies(size_t pending) {
  const auto pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  while (current->groups.size() > pending) {
    for (const Copy& copy : current->groups.front()) {
      mark_copy(copy, false, pc);
      check_access(reinterpret_cast<uintptr_t>(copy.to), copy.size, true, pc);
      for (size_t i = 0; i < copy.size; ++i) copy.to[i] = i < copy.valid ? copy.from[i] : 0;
    }
    current->groups.pop_front();
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
      launched.grid_y > kGridLimitY || launched.grid_x % launched.cluster != 0) {
    fail("a grid of " + std::to_string(launched.grid_x) + " x " + std::to_string(launched.grid_y));
  }
  if (launched.threads < 1 || launched.threads > 1024 || launched.threads % kWarpSize != 0) {
    fail(std::to_string(launched.threads) + " threads");
  }
  if (launched.storage > kSharedLimit || launched.alignment > kSharedAlignment) {
    fail(std::to_string(launched.storage) + " bytes of shared memory, aligned to " +
         std::to_string(launched.alignment));
  }
  random_state = run.seed * 2 + 1;
  for (int64_t first = 0; first < grid_blocks; first += launched.cluster) {
    start_cluster(first);
    alive = static_cast<int>(threads.size());
    while (alive > 0) {
      const int next = pick();
      if (next < 0) fail_stuck();
      resume(threads[next]);
    }
    for (Block& block : blocks) std::free(block.storage);
  }
  kernel = nullptr;
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
