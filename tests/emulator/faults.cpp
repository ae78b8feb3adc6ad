// SPDX-License-Identifier: Apache-2.0
// Small kernels with one fault each, to see that the emulated machine finds it.
// faults NAME [POLICY] runs one of them; without arguments it lists them.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "device.hpp"
#include "runtime.hpp"

namespace flashinfer_msa {

struct Buffers {
  const int32_t* input;  // 64
  int32_t* output;       // 64
};
struct Grid {
  int x, y;
};

struct Machine {
  const int t = thread_index();
  const Buffers& global;
  struct Shared {
    alignas(16) int32_t value[64];
    int32_t other[64];
  };
  Shared& shared;

  void put() const { shared.value[t] = t; }
  void answer(int32_t x) const { global.output[t] = x; }
};

using Body = void (*)(const Machine&);

Body chosen;

// Two blocks: the first alone has the body, or both where they are a cluster.
template <bool kWaits, int kSharesT = 1>
struct Kernel {
  static constexpr int kShares = kSharesT;
  static constexpr int kThreads = 64;
  using Storage = Machine::Shared;
  const Buffers& params;
  Storage& smem;
  static Grid grid(const Buffers&) { return {2, 1}; }
  void run() {
    if (kWaits) wait_for_producer(params.input);
    if (kShares > 1 || block_x() == 0) chosen(Machine{thread_index(), params, smem});
  }
};
using Cluster = Kernel<true, 2>;

int32_t& of_the_other(const Machine& m) { return of_block(m.shared.value, 1 - block_x())[m.t]; }

struct Fault {
  const char* name;
  Body body;
  cudaError_t (*launch)(const Buffers&, cudaStream_t) = launch_kernel<Kernel<true>>;
};

const Fault kFaults[] = {
    {"nothing",
     [](const Machine& m) {
       m.put();
       sync_block();
       m.answer(m.shared.value[63 - m.t]);
     }},
    {"nothing_with_copies",
     [](const Machine& m) {
       copy_async<4>(&m.shared.value[m.t], &m.global.input[m.t]);
       commit_copies();
       wait_copies<0>();
       sync_warp();
       m.answer(m.shared.value[m.t ^ 1]);
     }},
    {"no_block_barrier",
     [](const Machine& m) {
       m.put();
       sync_warp();
       m.answer(m.shared.value[63 - m.t]);
     }},
    {"no_warp_barrier",
     [](const Machine& m) {
       m.put();
       m.answer(m.shared.value[m.t ^ 1]);
     }},
    {"vote_for_a_barrier",
     [](const Machine& m) {
       m.put();
       warp_any(true);
       m.answer(m.shared.value[m.t ^ 1]);
     }},
    {"write_after_read",
     [](const Machine& m) {
       m.put();
       sync_block();
       const int32_t x = m.shared.value[m.t ^ 1];
       m.put();
       m.answer(x);
     }},
    {"two_writers",
     [](const Machine& m) {
       m.shared.value[m.t / 2] = 1;
       sync_block();
       m.answer(1);
     }},
    {"barriers_apart",
     [](const Machine& m) {
       if (m.t < 32) {
         sync_block();
       } else {
         sync_block();
       }
       m.answer(1);
     }},
    {"half_a_warp_votes",
     [](const Machine& m) {
       if (m.t % 2 == 0) warp_any(true);
       m.answer(1);
     }},
    {"gone_before_the_barrier",
     [](const Machine& m) {
       m.answer(1);
       if (m.t >= 32) return;
       sync_block();
     }},
    {"waits_for_ever",
     [](const Machine& m) {
       if (m.t > 0 && m.t < 32) sync_warp();
       sync_block();
       m.answer(1);
     }},
    {"written_twice", [](const Machine& m) { m.global.output[m.t / 2] = 1; }},
    {"output_read", [](const Machine& m) { m.answer(m.global.output[m.t] + 1); }},
    {"input_written", [](const Machine& m) { const_cast<int32_t&>(m.global.input[m.t]) = 1; }},
    {"past_the_input", [](const Machine& m) { m.answer(m.global.input[m.t + 1]); }},
    {"past_the_array",
     [](const Machine& m) {
       m.put();
       volatile int i = m.t + 1;
       m.answer(m.shared.value[i]);
     }},
    {"copy_not_waited_for",
     [](const Machine& m) {
       copy_async<4>(&m.shared.value[m.t], &m.global.input[m.t]);
       commit_copies();
       wait_copies<1>();
       m.answer(m.shared.value[m.t]);
     }},
    {"copy_of_another_lane",
     [](const Machine& m) {
       copy_async<4>(&m.shared.value[m.t], &m.global.input[m.t]);
       commit_copies();
       wait_copies<0>();
       m.answer(m.shared.value[m.t ^ 1]);
     }},
    {"copy_left_behind",
     [](const Machine& m) {
       copy_async<4>(&m.shared.value[m.t], &m.global.input[m.t]);
       m.answer(1);
     }},
    {"vector_not_aligned",
     [](const Machine& m) {
       m.put();
       sync_block();
       float v[4];
       read_scores(reinterpret_cast<const float*>(&m.shared.value[m.t % 32 + 1]), v);
       m.answer(static_cast<int32_t>(v[0]));
     }},
    {"input_read_too_early", [](const Machine& m) { m.shared.value[m.t] = m.global.input[m.t]; },
     launch_kernel<Kernel<false>>},
    {"output_written_too_early", [](const Machine& m) { m.answer(1); },
     launch_kernel<Kernel<false>>},
    {"nothing_with_clusters",
     [](const Machine& m) {
       arrive_cluster();
       wait_cluster();
       of_the_other(m) = m.t;
       arrive_cluster();
       wait_cluster();
       if (block_x() == 0) m.answer(m.shared.value[63 - m.t]);
     },
     launch_kernel<Cluster>},
    {"nothing_in_one_of_a_cluster",
     [](const Machine& m) {
       if (block_x() == 0) return;
       arrive_cluster();
       m.put();
       wait_cluster();
       m.answer(m.shared.value[m.t]);
     },
     launch_kernel<Cluster>},
    {"other_block_too_early",
     [](const Machine& m) {
       arrive_cluster();
       of_the_other(m) = m.t;
       wait_cluster();
     },
     launch_kernel<Cluster>},
    {"other_block_has_ended",
     [](const Machine& m) {
       if (block_x() == 1) return;
       arrive_cluster();
       wait_cluster();
       m.answer(of_the_other(m));
     },
     launch_kernel<Cluster>},
    {"block_barrier_for_a_cluster",
     [](const Machine& m) {
       arrive_cluster();
       wait_cluster();
       of_the_other(m) = m.t;
       sync_block();
       if (block_x() == 0) m.answer(m.shared.value[m.t]);
       arrive_cluster();
       wait_cluster();
     },
     launch_kernel<Cluster>},
    {"arrived_too_early",
     [](const Machine& m) {
       arrive_cluster();
       m.put();
       wait_cluster();
       of_the_other(m) = m.t;
       arrive_cluster();
       wait_cluster();
     },
     launch_kernel<Cluster>},
    {"waits_before_it_arrives", [](const Machine&) { wait_cluster(); }, launch_kernel<Cluster>},
    {"arrives_twice",
     [](const Machine&) {
       arrive_cluster();
       arrive_cluster();
     },
     launch_kernel<Cluster>},
    {"half_a_warp_arrives",
     [](const Machine& m) {
       if (m.t % 2 == 0) arrive_cluster();
     },
     launch_kernel<Cluster>},
    {"never_arrives",
     [](const Machine& m) {
       if (block_x() == 1) return sync_block();
       if (m.t >= 32) return sync_block();
       arrive_cluster();
       wait_cluster();
     },
     launch_kernel<Cluster>},
    {"no_such_block", [](const Machine& m) { of_block(m.shared.value, 2)[m.t] = 1; },
     launch_kernel<Cluster>},
    {"copied_too_early",
     [](const Machine& m) {
       copy_async<4>(&m.shared.value[m.t], &m.global.input[m.t]);
       wait_for_producer(m.global.input);
       commit_copies();
       wait_copies<0>();
     },
     launch_kernel<Kernel<false>>},
};

}  // namespace flashinfer_msa

int main(int count, char** arguments) {
  using namespace flashinfer_msa;
  const Fault* found = nullptr;
  for (const Fault& fault : kFaults) {
    if (count == 1) std::puts(fault.name);
    if (count > 1 && std::strcmp(fault.name, arguments[1]) == 0) found = &fault;
  }
  if (count == 1) return 0;
  if (found == nullptr) return 2;
  chosen = found->body;
  emulator::run.policy = static_cast<emulator::Policy>(count > 2 ? std::atoi(arguments[2]) : 0);
  auto* input = static_cast<int32_t*>(std::calloc(64, sizeof(int32_t)));
  auto* output = static_cast<int32_t*>(std::calloc(64, sizeof(int32_t)));
  const auto watch = [](const char* name, const int32_t* p, bool is_output) {
    emulator::run.buffers.push_back({name, reinterpret_cast<uintptr_t>(p), sizeof(int32_t),
                                     is_output, std::vector<uint8_t>(64, 1)});
  };
  watch("the input", input, false);
  watch("the output", output, true);
  found->launch(Buffers{input, output}, nullptr);
  std::free(input);
  std::free(output);
  return 0;
}
