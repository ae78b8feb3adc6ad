// SPDX-License-Identifier: Apache-2.0
// The end of a run that has a finding, and its words.
#include <unistd.h>

#include <cstdio>

#include "machine.hpp"

namespace flashinfer_msa {
namespace emulator {

std::string text(const Site& site) {
  return std::string(site.file) + ":" + std::to_string(site.line);
}

std::string text(const char* what, const Site& site) {
  return std::string(what) + " at " + text(site);
}

std::string text(const Thread& t) {
  return "thread " + std::to_string(t.index) + " of block " + std::to_string(t.block->index);
}

void fail(const std::string& message) {
  std::string where = run.label;
  if (kernel != nullptr) where += std::string(", ") + kernel->name;
  if (current != nullptr) where += ": " + text(*current);
  std::fprintf(stderr, "%s: %s\n", where.c_str(), message.c_str());
  std::fflush(nullptr);
  _exit(3);
}

}  // namespace emulator
}  // namespace flashinfer_msa
