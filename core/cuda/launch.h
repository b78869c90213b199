#pragma once
/// The one way in which kernels are started, on a GPU and in the simulator alike:
///
///   launch<relu_kernel<float>>({.grid = 4, .block = 256}, stream, x, y, n);
///
/// It checks the launch, counts it by the kernel's name (gpu::kernel_launches), and remembers the
/// name, so that an error which shows later can say what was running. With LOCKSTEP_BLOCKING=1 in
/// the environment it waits for each kernel, and the error names the very one.

#include <cuda_runtime.h>

#include <atomic>
#include <string_view>
#include <utility>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/gpu/stream_slice.h"

namespace lockstep::cuda {

struct LaunchShape {
  dim3 grid = 1;                 ///< blocks
  dim3 block = 1;                ///< threads per block
  std::size_t shared_bytes = 0;  ///< dynamic shared memory per block
  dim3 cluster = 1;              ///< blocks that run side by side; more: compute capability 9.0
};

/// One kernel's name and how often it was launched in this process.
struct KernelRecord {
  std::string_view name;
  std::atomic<std::uint64_t> launches{0};
};

namespace detail {

/// "sum_kernel" out of "... [with auto kernel = lockstep::{anonymous}::sum_kernel<float>; ...]":
/// the last name before the template arguments.
constexpr std::string_view name_in(std::string_view text) {
  constexpr std::string_view mark = "kernel = ";
  text.remove_prefix(text.find(mark) + mark.size());
  text = text.substr(0, text.find_first_of("<;](", 0));
  const auto colon = text.rfind(':');
  return colon == std::string_view::npos ? text : text.substr(colon + 1);
}

template <auto kernel>
constexpr std::string_view kernel_name() {
  return name_in(__PRETTY_FUNCTION__);
}

KernelRecord& record_of(std::string_view name);
[[noreturn]] void launch_failed(std::string_view name, const LaunchShape& shape, cudaError_t error);
void launched(const KernelRecord& kernel, cudaStream_t stream);

}  // namespace detail

/// Throws DeviceError if the launch is refused. `args` convert to the kernel's parameters.
template <auto kernel, class... Args>
void launch(const LaunchShape& shape, cudaStream_t stream, Args&&... args) {
  static KernelRecord& record = detail::record_of(detail::kernel_name<kernel>());
  const gpu::StreamSlice slice(record.name, stream);
  constexpr std::size_t granted_unasked = 48 << 10;
  cudaError_t error = cudaSuccess;
  if (shape.shared_bytes > granted_unasked) {
    const auto set = [](cudaFuncAttribute attribute, int value) {
      return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
    };
    error = set(cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes));
    // All that the L1 cache can spare: how many of such blocks share a multiprocessor is then not
    // the driver's choice. (For kernels that ask for less it is.)
    if (error == cudaSuccess)
      error = set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }
  if (error == cudaSuccess) {
    cudaLaunchConfig_t config{};
    config.gridDim = shape.grid;
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = stream;
    cudaLaunchAttribute clusters{};
    clusters.id = cudaLaunchAttributeClusterDimension;
    clusters.val.clusterDim.x = shape.cluster.x;
    clusters.val.clusterDim.y = shape.cluster.y;
    clusters.val.clusterDim.z = shape.cluster.z;
    config.attrs = &clusters;
    // A GPU without clusters refuses the very attribute.
    config.numAttrs = shape.cluster.x * shape.cluster.y * shape.cluster.z > 1 ? 1 : 0;
    error = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  }
  if (error != cudaSuccess) detail::launch_failed(record.name, shape, error);
  record.launches.fetch_add(1, std::memory_order_relaxed);
  detail::launched(record, stream);
}

}  // namespace lockstep::cuda
