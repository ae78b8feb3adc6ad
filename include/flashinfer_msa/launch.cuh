// SPDX-License-Identifier: Apache-2.0
// Launch scope: from a kernel struct (kThreads, kShares, Storage, grid, run) to a launch on a
// stream. So many consecutive thread blocks share rows, as a cluster.
#pragma once

#include "row.cuh"

#if !defined(FLASHINFER_MSA_EMULATED_DEVICE)  // else device.cuh has brought these functions along

namespace flashinfer_msa {

// How many thread blocks of the kernel shall fit a processor together, where that matters.
template <class Kernel>
constexpr auto blocks_per_processor(int) -> decltype(int{Kernel::kBlocksPerProcessor}) {
  return Kernel::kBlocksPerProcessor;
}
template <class Kernel>
constexpr int blocks_per_processor(long) {
  return 1;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <class Kernel>
constexpr bool kExists = Kernel::kShares == 1;
#else
template <class Kernel>
constexpr bool kExists = true;
#endif

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, blocks_per_processor<Kernel>(0))
    run_kernel(const __grid_constant__ Params params) {
  if constexpr (kExists<Kernel>) {  // else it is never launched
    extern __shared__ __align__(16) unsigned char storage[];
    Kernel{params, *reinterpret_cast<typename Kernel::Storage*>(storage)}.run();
  }
}

// What a thread block may have on every GPU that runs our sm_80 code, 8.6 and 8.9 included.
constexpr size_t kMaxStorage = 99 * 1024;

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

// What a launch of the kernel needs.
template <class Kernel>
class LaunchConfig {
 public:
  explicit LaunchConfig(dim3 grid, size_t storage = sizeof(typename Kernel::Storage)) {
    config_.gridDim = grid;
    config_.blockDim = dim3(Kernel::kThreads);
    config_.dynamicSmemBytes = storage;
    config_.attrs = attributes_;
    if constexpr (Kernel::kShares > 1) {
      add(cudaLaunchAttributeClusterDimension).clusterDim = {Kernel::kShares, 1, 1};
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;  // it points to itself

  cudaLaunchAttributeValue& add(cudaLaunchAttributeID id) {
    cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
    attribute.id = id;
    return attribute.val;
  }
  void run_on(cudaStream_t stream) { config_.stream = stream; }
  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchConfig_t config_ = {};
  cudaLaunchAttribute attributes_[2];
};

// Takes kClusters out of the features where a cluster of the kernel, which has been prepared, has
// no room: in a small part of a GPU, say.
template <class Kernel>
cudaError_t expect_clusters(int32_t& features) {
  if ((features & Params::kClusters) == 0) return cudaSuccess;
  const LaunchConfig<Kernel> config(dim3(Kernel::kShares));
  int clusters = 0;
  const cudaError_t error =
      cudaOccupancyMaxActiveClusters(&clusters, run_kernel<Kernel>, config.get());
  if (error == cudaSuccess && clusters == 0) features &= ~Params::kClusters;
  return error;
}

template <class Kernel>
cudaError_t launch_kernel(const Params& params, cudaStream_t stream) {
  const Grid grid = Kernel::grid(params);
  LaunchConfig<Kernel> config(dim3(grid.x, grid.y), storage_of<Kernel>(params, 0));
  if (params.has(Params::kDependentLaunch)) {
    config.add(cudaLaunchAttributeProgrammaticStreamSerialization)
        .programmaticStreamSerializationAllowed = 1;
  }
  config.run_on(stream);
  return cudaLaunchKernelEx(config.get(), run_kernel<Kernel>, params);
}

}  // namespace flashinfer_msa

#endif

namespace flashinfer_msa {

// How many clusters of so many thread blocks, each with most of a processor, an H200 holds at once.
// One more would wait for a whole launch.
constexpr int clusters_at_once(int shares) { return shares == 8 ? 15 : shares == 4 ? 30 : 66; }

template <class Kernel>
int64_t clusters_of(const Params& params) {
  const Grid grid = Kernel::grid(params);
  return int64_t{grid.x / Kernel::kShares} * grid.y;
}
template <class Kernel>
bool fit_at_once(const Params& params) {
  return clusters_of<Kernel>(params) <= clusters_at_once(Kernel::kShares);
}

template <class... Kernels>
cudaError_t prepare_kernels() {
  cudaError_t error = cudaSuccess;
  ((error = error == cudaSuccess ? prepare_kernel<Kernels>() : error), ...);
  return error;
}

}  // namespace flashinfer_msa
