/// Devices, errors, versions.

#include <cstdio>
#include <cstring>

#include "lockstep/simt/execution/limits.h"
#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/runtime/capture.h"

using namespace simt::detail;
namespace limits = simt::limits;

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};

// Short descriptions of our own; the names are CUDA's.
constexpr ErrorText error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading",
     "the process is ending, and CUDA has ended before it"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration: a grid or block of no threads, or of too many"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "not a direction of a copy"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "not a kernel"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no device"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "no device of this number"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized",
     "memory of this very process cannot be opened by its handle"},
    {cudaErrorMapBufferObjectFailed, "cudaErrorMapBufferObjectFailed",
     "the memory of the handle has been freed, or its process has ended"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
     "not a valid handle, or one of another device"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "not allowed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "not done yet"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "illegal memory access"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources asked for"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported",
     "these devices cannot address each other's memory"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is enabled already"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled", "peer access is not enabled"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "host memory is registered already"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "host memory is not registered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "a kernel failed"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "not permitted here"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "not supported by the simulator"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "not permitted while a stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "an error before this has invalidated the capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge", "would merge two captures"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "the capture did not begin in this stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "the capture was left by a stream that never came back to its origin"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "would make a capture depend on work outside of it"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "the legacy default stream would wait for a stream that is capturing"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent", "the event was last recorded in a capture"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "another thread began the capture"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize",
     "clusters of no blocks, of too many, or that do not divide the grid"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const ErrorText* find(cudaError_t error) {
  for (const ErrorText& one : error_texts)
    if (one.error == error) return &one;
  return nullptr;
}

/// The error that no call makes go away, if there is one.
cudaError_t sticky_error(Runtime& runtime) {
  if (!runtime.unusable.empty()) return cudaErrorInitializationError;
  const int device = Runtime::current_device();
  return device < runtime.config.devices && !runtime.device(device).fault.empty()
             ? cudaErrorLaunchFailure
             : cudaSuccess;
}

}  // namespace

const char* cudaGetErrorString(cudaError_t error) {
  Runtime& runtime = Runtime::get();
  const std::lock_guard lock(runtime.mutex);
  if (error == cudaErrorInitializationError && !runtime.unusable.empty())
    return runtime.unusable.c_str();
  if (error == cudaErrorLaunchFailure && !runtime.reports.empty())
    return runtime.reports.back().c_str();
  const ErrorText* found = find(error);
  return found ? found->text : "unrecognized error code";
}

const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* found = find(error);
  return found ? found->name : "unrecognized error code";
}

cudaError_t cudaPeekAtLastError() {
  Runtime& runtime = Runtime::get();
  const std::lock_guard lock(runtime.mutex);
  const cudaError_t sticky = sticky_error(runtime);
  return sticky != cudaSuccess ? sticky : this_thread.last_error;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  this_thread.last_error = cudaSuccess;
  return error;
}

cudaError_t cudaGetDevice(int* device) {
  return call_runtime<Context::not_needed>([&](Runtime&) {
    require(device != nullptr, cudaErrorInvalidValue);
    *device = Runtime::current_device();
  });
}

cudaError_t cudaSetDevice(int device) {
  return call_runtime<Context::not_needed>([&](Runtime& runtime) {
    runtime.device(device);
    this_thread.device = device;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  return call_runtime<Context::not_needed>([&](Runtime& runtime) {
    require(count != nullptr, cudaErrorInvalidValue);
    *count = runtime.config.devices;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call_runtime<Context::not_needed>([&](Runtime& runtime) {
    require(properties != nullptr, cudaErrorInvalidValue);
    runtime.device(device);
    cudaDeviceProp p{};
    std::strcpy(p.name, "simulated GPU");
    p.totalGlobalMem = runtime.config.device_bytes;
    p.sharedMemPerBlock = limits::shared_unasked;
    p.regsPerBlock = p.regsPerMultiprocessor = limits::registers;
    p.warpSize = 32;
    p.maxThreadsPerBlock = p.maxThreadsDim[0] = p.maxThreadsDim[1] = limits::block_threads;
    p.maxThreadsDim[2] = limits::block_z;
    p.maxGridSize[0] = limits::grid_x;
    p.maxGridSize[1] = p.maxGridSize[2] = limits::grid_yz;
    p.totalConstMem = 64 << 10;
    p.major = runtime.config.capability / 10;
    p.minor = runtime.config.capability % 10;
    p.multiProcessorCount = limits::multiprocessors;
    p.canMapHostMemory = p.unifiedAddressing = p.memoryPoolsSupported = 1;
    p.pciBusID = device + 1;
    p.l2CacheSize = limits::cache_bytes;
    p.maxThreadsPerMultiProcessor = limits::multiprocessor_threads;
    p.maxBlocksPerMultiProcessor = limits::multiprocessor_blocks;
    p.sharedMemPerMultiprocessor = limits::shared_multiprocessor;
    p.sharedMemPerBlockOptin = limits::shared_opt_in;
    *properties = p;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  return call_runtime([&](Runtime& runtime) {
    require(text != nullptr && bytes >= 13, cudaErrorInvalidValue);
    runtime.device(device);  // checks the number
    std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device & 0xff);
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call_runtime<Context::not_needed>([&](Runtime& runtime) {
    require(value != nullptr, cudaErrorInvalidValue);
    runtime.device(device);
    const int capability = runtime.config.capability;
    const auto of = [attribute, capability]() -> int {
      switch (attribute) {
        case cudaDevAttrMaxThreadsPerBlock:
        case cudaDevAttrMaxBlockDimX: return limits::block_threads;
        case cudaDevAttrMaxGridDimX: return limits::grid_x;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ: return limits::grid_yz;
        case cudaDevAttrMaxSharedMemoryPerBlock: return limits::shared_unasked;
        case cudaDevAttrWarpSize: return 32;
        case cudaDevAttrMaxRegistersPerBlock: return limits::registers;
        case cudaDevAttrMultiProcessorCount: return limits::multiprocessors;
        case cudaDevAttrL2CacheSize: return limits::cache_bytes;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return limits::multiprocessor_threads;
        case cudaDevAttrComputeCapabilityMajor: return capability / 10;
        case cudaDevAttrComputeCapabilityMinor: return capability % 10;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return limits::shared_multiprocessor;
        case cudaDevAttrCooperativeLaunch: return 0;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return limits::shared_opt_in;
        case cudaDevAttrMaxBlocksPerMultiprocessor: return limits::multiprocessor_blocks;
        case cudaDevAttrCanFlushRemoteWrites:
        case cudaDevAttrMemoryPoolsSupported:
        case cudaDevAttrIpcEventSupport: return 1;
      }
      throw Refusal{cudaErrorInvalidValue};
    };
    *value = of();
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call_runtime([](Runtime& runtime) {
    refuse_in_capture(runtime);
    runtime.wait_for_device(Runtime::current_device());
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call_runtime([&](Runtime&) {
    if (least) *least = limits::least_priority;
    if (greatest) *greatest = limits::greatest_priority;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call_runtime([&](Runtime& runtime) {
    require(can != nullptr, cudaErrorInvalidValue);
    runtime.device(device);
    runtime.device(peer);
    *can = device != peer && runtime.config.peer_access;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return call_runtime([&](Runtime& runtime) {
    runtime.device(peer);
    require(flags == 0, cudaErrorInvalidValue);
    require(peer != Runtime::current_device(), cudaErrorInvalidDevice);
    require(runtime.config.peer_access, cudaErrorPeerAccessUnsupported);
    runtime.may_synchronize("cudaDeviceEnablePeerAccess");
    auto& peers = runtime.device(Runtime::current_device()).peers;
    for (const int known : peers) require(known != peer, cudaErrorPeerAccessAlreadyEnabled);
    peers.push_back(peer);
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  return call_runtime<Context::not_needed>([&](Runtime&) {
    require(version != nullptr, cudaErrorInvalidValue);
    *version = limits::cuda_version;
  });
}

cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
