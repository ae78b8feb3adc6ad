// SPDX-License-Identifier: Apache-2.0
// Kernels to run before and after the selector's: they end late, and let the next one start early.
#include <cuda_runtime.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kBlocks = 4, kThreads = 256;  // few: the next kernel finds room beside them

__device__ void start_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__global__ void slow_copy(volatile int* to, const volatile int* from, long long words,
                          long long cycles, bool early) {
  if (early) start_next();
  const long long start = clock64();
  while (clock64() - start < cycles) {
  }
  const long long first = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  for (long long i = first; i < words; i += kBlocks * kThreads) to[i] = from[i];
}

__global__ void pass_on() { start_next(); }

}  // namespace

EXPORT int flashinfer_msa_abi_version() { return 1; }

// Copies after some cycles; where `early`, the next kernel may start before that.
EXPORT int producers_slow_copy(void* to, const void* from, long long words, long long cycles,
                               int early, void* stream) {
  slow_copy<<<kBlocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<int*>(to), static_cast<const int*>(from), words, cycles, early != 0);
  return cudaGetLastError();
}

// Does nothing, waits for nothing, and lets the next kernel start at once. Needs a GPU of 9.0.
EXPORT int producers_pass_on(void* stream) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, pass_on);
}
