// SPDX-License-Identifier: Apache-2.0
// Runs calls from a file on the emulated machine: driver CASES ANSWERS. It is the last part of a
// translation unit that starts with the rendered templates, and calls the C functions they export.
//
// A case is a Header, the scores' memory, and the extents if there are any; an answer is the
// output. Kernels go to standard output, one a line. A finding ends the process with code 3.
#include <sys/time.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "runtime.hpp"

namespace {

namespace emulator = flashinfer_msa::emulator;
using SpecPolicy = flashinfer_msa::SpecPolicy;

struct Header {
  int64_t policy, seed;
  int64_t family;  // who chooses the kernel: 0 the dispatch, else see launch_family()
  int64_t heads, blocks, tokens, head_stride, block_stride, token_stride;
  int64_t extent, topk, force_begin, force_end;
  int64_t elements;  // of the scores' memory
  int64_t offset;    // elements by which every buffer is moved off its alignment
  int64_t per_token;
  int64_t features;  // that the call may use
};

constexpr int32_t kUnwritten = 0x7f7f7f7f;

// Ends exactly where the last element does, so that a step further is a step too far.
template <class T>
struct Memory {
  Memory(int64_t count, int64_t offset)
      : whole(static_cast<T*>(std::malloc((count + offset) * sizeof(T) + (count + offset == 0)))),
        data(whole + offset),
        count(count) {
    std::memset(static_cast<void*>(whole), 0x7f, (count + offset) * sizeof(T));
  }
  ~Memory() { std::free(whole); }
  Memory(const Memory&) = delete;
  void read(std::FILE* file) {
    const size_t got = std::fread(static_cast<void*>(data), sizeof(T), count, file);
    if (static_cast<int64_t>(got) != count) emulator::fail("the file of cases is too short");
  }
  void watch(const char* name, bool output, std::vector<uint8_t> allowed) const {
    emulator::run.buffers.push_back(
        {name, reinterpret_cast<uintptr_t>(data), sizeof(T), output, std::move(allowed)});
  }
  T* whole;
  T* data;
  int64_t count;
};

std::vector<uint8_t> elements_of_rows(const Header& h) {
  std::vector<uint8_t> allowed(h.elements, 0);
  for (int64_t i = 0; i < h.heads; ++i) {
    for (int64_t j = 0; j < h.blocks; ++j) {
      for (int64_t k = 0; k < h.tokens; ++k) {
        allowed[i * h.head_stride + j * h.block_stride + k * h.token_stride] = 1;
      }
    }
  }
  return allowed;
}

// Launches a kernel that the dispatch would not have chosen, in the order of FAMILIES in Python.
template <class Policy>
cudaError_t launch_family(int64_t family, const flashinfer_msa::Params& params) {
  using namespace flashinfer_msa;
  if (family == 1) return FewRows<Policy>::launch(params, nullptr);
  if (family == 2) return ManyRows<Policy>::launch(params, nullptr);
  using Long = LongRowsKernels<Policy>;
  if (family == 3 || family == 4) {
    using Short = ShortRowsKernels<Policy>;
    return params.blocks <= Short::UpTo512::kBlocks
               ? Short::launch(params, family == 3 ? 1 : Short::kMany, nullptr)
               : Long::launch(params, family == 3 ? 1 : Long::kMany, nullptr);
  }
  if (family == 5) return launch_kernel<typename Long::Longer>(params, nullptr);
  using One = FewRowsKernels<Policy>;
  if (family == 12) return launch_kernel<typename One::template Shared<2>>(params, nullptr);
  if (family == 13) return launch_kernel<typename One::template Shared<4>>(params, nullptr);
  if (family == 14) return launch_kernel<typename One::template Shared<8>>(params, nullptr);
  if (family == 15) return launch_kernel<typename Long::FewSharedUpTo8192>(params, nullptr);
  if (family == 16) return launch_kernel<typename Long::template Shared<2>>(params, nullptr);
  if (family == 17) return launch_kernel<typename Long::template Shared<4>>(params, nullptr);
  if (family == 18) return launch_kernel<typename Long::template Shared<8>>(params, nullptr);
  if (family == 6) return launch_kernel<typename Long::UpTo8192>(params, nullptr);
  if constexpr (Long::kByHalves) {
    if (family == 19) return launch_kernel<typename Long::SharedUpTo8192>(params, nullptr);
  }
  if constexpr (Long::kNarrow) {
    if (family == 7) return launch_kernel<typename Long::ManyUpTo8192>(params, nullptr);
  }
  if constexpr (TopKSelect<Policy>::kHasManyRows) {
    if (family == 8) return launch_kernel<typename QuadKernel<Policy>::Quad>(params, nullptr);
    using TokensTogether = ManyRowsKernels<Policy, false>;
    using BlocksTogether = ManyRowsKernels<Policy, true>;
    const bool tokens = params.token_stride == 1;
    if (family == 9) {
      return tokens ? launch_kernel<typename TokensTogether::Lean>(params, nullptr)
                    : launch_kernel<typename BlocksTogether::Lean>(params, nullptr);
    }
    if (family == 10) {
      return tokens ? launch_kernel<typename TokensTogether::Wide>(params, nullptr)
                    : launch_kernel<typename BlocksTogether::Wide>(params, nullptr);
    }
    if (family == 11) {
      return tokens ? launch_kernel<typename TokensTogether::Wider>(params, nullptr)
                    : launch_kernel<typename BlocksTogether::Wider>(params, nullptr);
    }
    if (family == 20) {
      return tokens ? launch_kernel<typename TokensTogether::Sixteen>(params, nullptr)
                    : launch_kernel<typename BlocksTogether::Sixteen>(params, nullptr);
    }
    return tokens ? launch_kernel<typename TokensTogether::Eight>(params, nullptr)
                  : launch_kernel<typename BlocksTogether::Eight>(params, nullptr);
  }
  return cudaErrorNotSupported;
}

// Launches as the caller of the library would; a family of kernels gets the parameters that the
// dispatch was given.
int launch(const Header& h, const void* scores, const int32_t* extents, int32_t* output) {
  const auto narrow = [](int64_t x) { return static_cast<int32_t>(x); };
  flashinfer_msa::Params params;
  emulator::run.params = h.family == 0 ? nullptr : &params;
  flashinfer_msa::Call call = {scores, extents, output};
  call.heads = narrow(h.heads), call.blocks = narrow(h.blocks), call.tokens = narrow(h.tokens);
  call.head_stride = h.head_stride, call.block_stride = h.block_stride;
  call.token_stride = h.token_stride;
  call.extent = narrow(h.extent), call.topk = narrow(h.topk);
  call.force_begin = narrow(h.force_begin), call.force_end = narrow(h.force_end);
  call.features = narrow(h.features);
  const int error = topk_select(&call);
  emulator::run.params = nullptr;
  if (error != 0 || h.family == 0) return error;
  return launch_family<SpecPolicy>(h.family, params);
}

void run_case(const Header& h, std::FILE* cases, std::FILE* answers) {
  Memory<SpecPolicy::Score> scores(h.elements, h.offset);
  Memory<int32_t> extents(h.per_token ? h.tokens : 0, h.offset);
  Memory<int32_t> output(h.tokens * h.heads * h.topk, h.offset);
  scores.read(cases);
  extents.read(cases);
  emulator::run.policy = static_cast<emulator::Policy>(h.policy);
  emulator::run.seed = static_cast<uint64_t>(h.seed);
  emulator::run.buffers.clear();
  emulator::run.launched.clear();
  scores.watch("the scores", false, elements_of_rows(h));
  extents.watch("the extents", false, std::vector<uint8_t>(extents.count, 1));
  output.watch("the output", true, std::vector<uint8_t>(output.count, 1));
  for (int64_t i = 0; i < output.count; ++i) output.data[i] = kUnwritten;
  const int error = launch(h, scores.data, h.per_token ? extents.data : nullptr, output.data);
  if (error != 0) emulator::fail("the launch answers " + std::to_string(error));
  std::fwrite(output.data, sizeof(int32_t), output.count, answers);
}

// A kernel that does not end is a fault too: then the program gets SIGPROF. Counted is the time of
// the processor, which a busy machine does not make longer: ten times the longest call's.
void limit_time() {
  const bool is_mutant = std::strtol(std::getenv("FLASHINFER_MSA_MUTANT"), nullptr, 10) != 0;
  itimerval timer = {};
  timer.it_value.tv_sec = is_mutant ? 6 : 120;
  setitimer(ITIMER_PROF, &timer, nullptr);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  std::FILE* cases = std::fopen(arguments[1], "rb");
  std::FILE* answers = std::fopen(arguments[2], "wb");
  if (cases == nullptr || answers == nullptr) return 2;
  int32_t features;
  if (topk_select_prepare(&features) != 0) return 2;
  for (const std::string& name : emulator::run.prepared) std::printf("prepared %s\n", name.c_str());
  Header header;
  for (int number = 0; std::fread(&header, sizeof(header), 1, cases) == 1; ++number) {
    emulator::run.label = "case " + std::to_string(number);
    std::printf("case %d\n", number);  // before it runs: a sanitizer's report does not say
    std::fflush(stdout);
    limit_time();
    run_case(header, cases, answers);
    for (const std::string& name : emulator::run.launched) {
      std::printf("launched %s\n", name.c_str());
    }
  }
  std::fclose(answers);
  return 0;
}
