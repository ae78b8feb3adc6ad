// SPDX-License-Identifier: Apache-2.0
// Barriers and collectives: the threads of a scope meet at one call site.
#include <cstring>

#include "machine.hpp"

namespace flashinfer_msa {
namespace emulator {

namespace {

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

}  // namespace

void leave(Scope& scope) {
  ++scope.left;
  if (scope.arrived > 0) {
    fail("left the kernel while others of its " + std::string(scope.name) + " wait in " +
         text(scope.what, scope.site));
  }
}

Lanes meet(const char* what, Site site, uint64_t value) {
  Scope& warp = *current->warp;
  warp.brought.value[current->index % kWarpSize] = value;
  arrive(warp, what, site, false);
  return warp.shown;
}
void sync_warp(Site site) { arrive(*current->warp, "sync_warp", site, true); }
void sync_block(Site site) { arrive(*current->all, "sync_block", site, true); }

}  // namespace emulator
}  // namespace flashinfer_msa
