/// Kernel launches.

#include "lockstep/simt/include/simt/launch.h"

#include <algorithm>

#include "lockstep/simt/execution/limits.h"
#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/runtime/capture.h"

namespace simt::detail {
namespace {

std::uint64_t volume(dim3 size) { return std::uint64_t{size.x} * size.y * size.z; }

void check_shape(const cudaLaunchConfig_t& config) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  require(volume(grid) > 0 && volume(block) > 0, cudaErrorInvalidConfiguration);
  require(grid.x <= limits::grid_x && grid.y <= limits::grid_yz && grid.z <= limits::grid_yz,
          cudaErrorInvalidConfiguration);
  require(block.x <= limits::block_threads && block.y <= limits::block_threads &&
              block.z <= limits::block_z && volume(block) <= limits::block_threads,
          cudaErrorInvalidConfiguration);
}

/// The blocks of a cluster, from the launch's attributes.
dim3 cluster_of(const cudaLaunchConfig_t& config) {
  dim3 cluster;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeIgnore) continue;
    require(attribute.id == cudaLaunchAttributeClusterDimension, cudaErrorNotSupported);
    const auto& size = attribute.val.clusterDim;
    cluster = dim3(size.x, size.y, size.z);
  }
  return cluster;
}

/// The running thread's device's.
KernelSettings& settings_of(Runtime& runtime, const void* kernel) {
  return runtime.device(Runtime::current_device()).kernels[kernel];
}

/// Beyond what CUDA asks for: blocks of a cluster are whole warps, few enough to be threads of one
/// set, and keep nothing in static shared memory, of which there is one in the process.
void check_cluster(const cudaLaunchConfig_t& config, dim3 cluster, const KernelInfo& kernel,
                   const KernelSettings& settings, int capability) {
  const dim3 grid = config.gridDim;
  const std::uint64_t blocks = volume(cluster), threads = volume(config.blockDim);
  const unsigned most =
      settings.non_portable_clusters ? limits::cluster_opt_in : limits::cluster_blocks;
  require(blocks >= 1 && blocks <= most, cudaErrorInvalidClusterSize);
  require(grid.x % cluster.x == 0 && grid.y % cluster.y == 0 && grid.z % cluster.z == 0,
          cudaErrorInvalidClusterSize);
  if (blocks == 1) return;
  require(capability >= 90, cudaErrorNotSupported);
  require(threads % 32 == 0 && blocks * threads <= limits::cluster_threads, cudaErrorNotSupported);
  require(kernel.shared_bytes == 0, cudaErrorNotSupported);
}

void check_shared_memory(const KernelInfo& kernel, const KernelSettings& settings,
                         std::size_t dynamic) {
  const bool opted_in = settings.dynamic_shared_limit > limits::shared_unasked;
  const std::size_t limit =
      opted_in ? settings.dynamic_shared_limit
               : limits::shared_unasked - std::min(kernel.shared_bytes, limits::shared_unasked);
  require(dynamic <= limit, cudaErrorInvalidValue);
}

void run_kernel(Runtime& runtime, int device, const GridRun& run) {
  std::string report;
  try {
    report = run_grid(run);
  } catch (const std::bad_alloc&) {
    report = "no memory for the stacks or the shared memory of kernel " + run.kernel->name;
  }
  if (!report.empty()) runtime.break_device(device, std::move(report));
}

/// A kernel is loaded when it is first asked for: on a GPU, that may wait for all of its work.
void load(Runtime& runtime, const void* kernel, const KernelInfo& info) {
  bool& loaded = settings_of(runtime, kernel).loaded;
  if (!runtime.config.lazy_loading || loaded) return;
  runtime.may_synchronize(("the loading of " + info.name).c_str(), Runtime::Source::documented);
  loaded = true;
}

}  // namespace

cudaError_t launch(const cudaLaunchConfig_t* config, const void* kernel, KernelCall call) {
  return call_runtime([&](Runtime& runtime) {
    require(config != nullptr, cudaErrorInvalidValue);
    require(kernel != nullptr, cudaErrorInvalidDeviceFunction);
    const dim3 cluster = cluster_of(*config);
    check_shape(*config);
    const KernelInfo& info = kernel_info(kernel);
    const KernelSettings& settings = settings_of(runtime, kernel);
    check_cluster(*config, cluster, info, settings, runtime.config.capability);
    check_shared_memory(info, settings, config->dynamicSmemBytes);
    Stream& stream = runtime.stream(config->stream);
    require(stream.device == Runtime::current_device(), cudaErrorInvalidResourceHandle);

    load(runtime, kernel, info);
    const std::uint64_t number = ++runtime.device(stream.device).launches;
    submit(runtime, stream, cudaGraphNodeTypeKernel,
           [&runtime, &info, call = std::move(call), device = stream.device, grid = config->gridDim,
            block = config->blockDim, cluster, shared = config->dynamicSmemBytes, number] {
             // Each launch of each device has its own seed, whatever other ranks do.
             const Config& asked = runtime.config;
             Random seeds(asked.order_seed + (static_cast<std::uint64_t>(device) << 48) + number);
             run_kernel(
                 runtime, device,
                 {grid, block, cluster, shared, &info, &call, device, asked.order, seeds.next()});
           });
  });
}

}  // namespace simt::detail

using namespace simt::detail;
namespace limits = simt::limits;

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return call_runtime([&](Runtime& runtime) {
    require(kernel != nullptr, cudaErrorInvalidDeviceFunction);
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return;
    require(attribute == cudaFuncAttributeMaxDynamicSharedMemorySize ||
                attribute == cudaFuncAttributeNonPortableClusterSizeAllowed,
            cudaErrorInvalidValue);
    const KernelInfo& info = kernel_info(kernel);
    load(runtime, kernel, info);
    KernelSettings& settings = settings_of(runtime, kernel);
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) {
      settings.non_portable_clusters = value != 0;
      return;
    }
    require(
        value >= 0 && static_cast<std::size_t>(value) + info.shared_bytes <= limits::shared_opt_in,
        cudaErrorInvalidValue);
    settings.dynamic_shared_limit = static_cast<std::size_t>(value);
  });
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  return call_runtime([&](Runtime& runtime) {
    require(attributes != nullptr, cudaErrorInvalidValue);
    require(kernel != nullptr, cudaErrorInvalidDeviceFunction);
    const KernelInfo& info = kernel_info(kernel);
    load(runtime, kernel, info);
    *attributes = {};
    attributes->sharedSizeBytes = info.shared_bytes;
    attributes->maxThreadsPerBlock = static_cast<int>(limits::block_threads);
    attributes->maxDynamicSharedSizeBytes =
        static_cast<int>(settings_of(runtime, kernel).dynamic_shared_limit);
    attributes->binaryVersion = runtime.config.capability;
    attributes->ptxVersion = attributes->binaryVersion;
  });
}

/// One cluster runs at a time.
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* kernel,
                                           const cudaLaunchConfig_t* config) {
  return call_runtime([&](Runtime& runtime) {
    require(clusters != nullptr && config != nullptr, cudaErrorInvalidValue);
    require(kernel != nullptr, cudaErrorInvalidDeviceFunction);
    const KernelInfo& info = kernel_info(kernel);
    load(runtime, kernel, info);
    check_cluster(*config, cluster_of(*config), info, settings_of(runtime, kernel),
                  runtime.config.capability);
    *clusters = 1;
  });
}

/// By threads and shared memory; registers are not known here.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int block_threads,
                                                          std::size_t shared_bytes) {
  return call_runtime([&](Runtime& runtime) {
    require(blocks != nullptr && block_threads > 0, cudaErrorInvalidValue);
    require(kernel != nullptr, cudaErrorInvalidDeviceFunction);
    const KernelInfo& info = kernel_info(kernel);
    load(runtime, kernel, info);
    const std::size_t per_block = info.shared_bytes + shared_bytes + limits::shared_reserved;
    const int warps = (block_threads + 31) / 32;
    const int by_threads = static_cast<unsigned>(block_threads) > limits::block_threads
                               ? 0
                               : limits::multiprocessor_threads / (warps * 32);
    const int by_shared = static_cast<int>(limits::shared_multiprocessor / per_block);
    *blocks = std::min({by_threads, by_shared, limits::multiprocessor_blocks});
  });
}
