// SPDX-License-Identifier: Apache-2.0
// The threads of the running cluster as fibres, and who goes next.
//
// A context brings a fibre to its stack once; from then on jumps switch, since each switch of
// contexts asks the kernel for the mask of signals. AddressSanitizer would take a jump for the end
// of the stack's frames.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "machine.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace flashinfer_msa {
namespace emulator {

Thread* current;

namespace {

constexpr size_t kGuardSize = 64 << 10;  // a page at least, on every machine

std::vector<unsigned char*> stacks;
std::vector<uint64_t> ready;  // a bit a thread
int alive;
Place scheduler;
uint64_t random_state;
#if defined(__SANITIZE_ADDRESS__)
const void* scheduler_stack;
size_t scheduler_size;
#endif

void switch_places(Place& from, Place& to) {
#if defined(__SANITIZE_ADDRESS__)
  swapcontext(&from.context, &to.context);
#else
  if (_setjmp(from.jump) != 0) return;
  if (to.has_begun) _longjmp(to.jump, 1);
  to.has_begun = true;
  setcontext(&to.context);
#endif
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

void resume(Thread& t) {
  current = &t;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack;
  __sanitizer_start_switch_fiber(&fake_stack, t.stack, kStackSize);
#endif
  switch_places(scheduler, t.place);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  current = nullptr;
}

void enter() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
#endif
  kernel->body(kernel->params, current->block->storage);
  expect_no_copies();
  leave(*current->warp);
  leave(*current->all);
  leave_cluster();
  --alive;
  suspend(true);
}

void start(Thread& t) {
  ucontext_t& context = t.place.context;
  getcontext(&context);
  context.uc_stack.ss_sp = t.stack;
  context.uc_stack.ss_size = kStackSize;
  context.uc_link = nullptr;
  makecontext(&context, enter, 0);
  set_ready(t);
}

[[noreturn]] void fail_stuck() {
  for (const Thread& t : threads) {
    if (t.waits != nullptr) {
      fail(text(t) + " waits for ever in " + text(t.waits->what, t.waits->site));
    }
    if (t.awaits != nullptr) {
      fail(text(t) + " waits for ever in " + text(t.awaits, t.site));
    }
  }
  fail("no thread can go on");
}

}  // namespace

unsigned char* stack_for(size_t i) {
  while (stacks.size() <= i) {
    void* p = mmap(nullptr, kGuardSize + kStackSize, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || mprotect(p, kGuardSize, PROT_NONE) != 0) fail("no memory for stacks");
    stacks.push_back(static_cast<unsigned char*>(p) + kGuardSize);
  }
  return stacks[i];
}

void run_threads() {
  ready.assign((threads.size() + 63) / 64, 0);
  for (Thread& t : threads) start(t);
  alive = static_cast<int>(threads.size());
  scheduler.has_begun = true;
  while (alive > 0) {
    const int next = pick();
    if (next < 0) fail_stuck();
    resume(threads[next]);
  }
}

void set_ready(const Thread& t) { ready[t.id / 64] |= uint64_t{1} << t.id % 64; }

void suspend(bool finished) {
  Thread* self = current;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(finished ? nullptr : &self->fake_stack, scheduler_stack,
                                 scheduler_size);
#endif
  switch_places(self->place, scheduler);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->fake_stack, &scheduler_stack, &scheduler_size);
#endif
}

void seed_random(uint64_t seed) { random_state = seed * 2 + 1; }

uint64_t next_random() {  // xorshift
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  return random_state ^= random_state << 17;
}

}  // namespace emulator
}  // namespace flashinfer_msa
