// SPDX-License-Identifier: Apache-2.0
// What the driver tells the emulated machine, and what it learns from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace flashinfer_msa {
namespace emulator {

// Which runnable thread goes next: the lowest, the highest, or any, with switches at accesses too.
enum class Policy { kForward, kBackward, kRandom };

// Global memory of a call, element by element. Nothing of it is touched by a thread that has not
// waited for the kernel before. An input is only read, and only where allowed; of
// an output every element is written once and none is read.
struct Buffer {
  const char* name;
  uintptr_t begin;
  size_t element;
  bool output;
  std::vector<uint8_t> allowed;
};

struct Run {
  Policy policy = Policy::kForward;
  uint64_t seed = 0;
  std::string label;
  void* params = nullptr;  // if set, a launch only leaves its parameters there
  std::vector<Buffer> buffers;
  std::vector<std::string> prepared, launched;
};

extern Run run;

[[noreturn]] void fail(const std::string& message);

}  // namespace emulator
}  // namespace flashinfer_msa
