// SPDX-License-Identifier: Apache-2.0
// Launch scope: from a kernel struct (kThreads, Storage, grid, run) to a launch on a stream.
#pragma once

#include "row.cuh"

#if !defined(FLASHINFER_MSA_EMULATED_DEVICE)  // else device.cuh has brought these functions along

namespace flashinfer_msa {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1)
    run_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) unsigned char storage[];
  Kernel{params, *reinterpret_cast<typename Kernel::Storage*>(storage)}.run();
}

// What a thread block may have on every GPU that runs our sm_80 code, 8.6 and 8.9 included.
constexpr size_t kMaxStorage = 99 * 1024;

// Loads the kernel on the current GPU and allows it its shared memory. Once a GPU, before the
// first launch there: neither step is legal while a graph is being captured.
template <class Kernel>
cudaError_t prepare_kernel() {
  static_assert(sizeof(typename Kernel::Storage) <= kMaxStorage,
                "shared memory of the smallest GPU");
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, run_kernel<Kernel>);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(sizeof(typename Kernel::Storage)));
}

template <class Kernel>
cudaError_t launch_kernel(const Params& params, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  const Grid grid = Kernel::grid(params);
  config.gridDim = dim3(grid.x, grid.y);
  config.blockDim = dim3(Kernel::kThreads);
  config.dynamicSmemBytes = sizeof(typename Kernel::Storage);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, run_kernel<Kernel>, params);
}

}  // namespace flashinfer_msa

#endif
