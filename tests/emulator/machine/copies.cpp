// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies to shared memory. Each takes place as late as it may.
#include <utility>

#include "machine.hpp"

namespace flashinfer_msa {
namespace emulator {

// To other threads a copy is a write from its start to the end of the wait for it.
void copy_async(void* to, const void* from, size_t size, Site site) {
  const Copy copy = {static_cast<unsigned char*>(to), static_cast<const unsigned char*>(from),
                     size};
  if (!is_within(reinterpret_cast<uintptr_t>(to), current->block->storage, kernel->storage)) {
    fail("copies to no shared memory at " + text(site));
  }
  expect_aligned(to, size);
  expect_aligned(from, size);
  const auto pc = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  check_access(reinterpret_cast<uintptr_t>(to), size, true, pc);
  check_access(reinterpret_cast<uintptr_t>(from), size, false, pc);
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
      for (size_t i = 0; i < copy.size; ++i) copy.to[i] = copy.from[i];
    }
    current->groups.pop_front();
  }
}

void expect_no_copies() {
  while (!current->groups.empty()) {  // empty ones are nothing to wait for
    if (!current->groups.front().empty()) fail("leaves the kernel with copies under way");
    current->groups.pop_front();
  }
  if (!current->open.empty()) fail("leaves the kernel with copies under way");
}

}  // namespace emulator
}  // namespace flashinfer_msa
