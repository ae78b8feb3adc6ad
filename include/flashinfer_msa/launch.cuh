// SPDX-License-Identifier: Apache-2.0
// Launch scope: from a kernel struct (kThreads, Storage, grid, run) to a launch on a stream. One
// that works in clusters of thread blocks says how many with kClusterBlocks.
#pragma once

#include "row.cuh"

namespace flashinfer_msa {

// What every thread does. Nothing of global memory may be touched before the wait: an earlier
// kernel may still write the scores and the extents, or read the output.
template <class Kernel, class ParamsT>
FLASHINFER_MSA_DEVICE void run_thread(const ParamsT& params, typename Kernel::Storage& storage) {
  wait_for_producer();
  Kernel{params, storage}.run();
}

}  // namespace flashinfer_msa

#if !defined(FLASHINFER_MSA_EMULATED_DEVICE)  // else device.cuh has brought these functions along

namespace flashinfer_msa {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1)
    run_kernel(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) unsigned char storage[];
  run_thread<Kernel>(params, *reinterpret_cast<typename Kernel::Storage*>(storage));
}

// What a thread block may have on every GPU that runs our sm_80 code, 8.6 and 8.9 included.
constexpr size_t kMaxStorage = 99 * 1024;

template <class Kernel>
constexpr auto cluster_of(int) -> decltype(int{Kernel::kClusterBlocks}) {
  return Kernel::kClusterBlocks;
}
template <class Kernel>
constexpr int cluster_of(long) {
  return 1;
}

// Tells what the code for the current GPU was compiled for; all of a library is compiled alike.
template <class Policy>
__global__ void probe_kernel() {}

// Answers bits of Params::Feature for the current GPU. The capability of the GPU is not asked: on
// 9.0 may run code for 8.0, which has no wait_for_producer, so that a dependent launch of it would
// be a race.
template <class Policy>
cudaError_t find_features(int32_t& features) {
  constexpr int kFirstCode = 90;         // of compute capability 9.0
  constexpr int kFirstDriver = 12'03'0;  // that captures dependent launches in graphs
  features = 0;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaFuncGetAttributes(&attributes, probe_kernel<Policy>);
  int driver = 0;
  if (error == cudaSuccess) error = cudaDriverGetVersion(&driver);
  if (error != cudaSuccess || attributes.ptxVersion < kFirstCode) return error;
  features = Params::kClusters | (driver >= kFirstDriver ? Params::kDependentLaunch : 0);
  return cudaSuccess;
}

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

// A kernel in clusters is launched only where params.has(Params::kClusters).
template <class Kernel>
cudaError_t launch_kernel(const Params& params, cudaStream_t stream) {
  constexpr int kClusterBlocks = cluster_of<Kernel>(0);
  static_assert(kClusterBlocks <= 8, "larger clusters are not to be had everywhere");
  cudaLaunchConfig_t config = {};
  cudaLaunchAttribute attributes[2];
  config.attrs = attributes;
  if (params.has(Params::kDependentLaunch)) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (kClusterBlocks > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {kClusterBlocks, 1, 1};
  }
  const Grid grid = Kernel::grid(params);
  config.gridDim = dim3(grid.x, grid.y);
  config.blockDim = dim3(Kernel::kThreads);
  config.dynamicSmemBytes = sizeof(typename Kernel::Storage);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, run_kernel<Kernel>, params);
}

}  // namespace flashinfer_msa

#endif
