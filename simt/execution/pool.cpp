/// Memory pools: each device has its default one, with settings that are kept and change nothing.

#include "lockstep/simt/runtime/call.h"

using namespace simt::detail;

namespace {

/// A pool's handle is its device: no code looks at what CUDA hides behind a handle.
cudaMemPool_t handle_of(Device& device) { return reinterpret_cast<cudaMemPool_t>(&device); }

Device& device_of(Runtime& runtime, cudaMemPool_t pool) {
  for (int index = 0; index < runtime.config.devices; ++index)
    if (handle_of(runtime.device(index)) == pool) return runtime.device(index);
  throw Refusal{cudaErrorInvalidValue};
}

}  // namespace

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return call_runtime([&](Runtime& runtime) {
    require(pool != nullptr, cudaErrorInvalidValue);
    *pool = handle_of(runtime.device(device));
  });
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return cudaDeviceGetDefaultMemPool(pool, device);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call_runtime([&](Runtime& runtime) {
    Device& device = device_of(runtime, pool);
    require(value != nullptr, cudaErrorInvalidValue);
    switch (attribute) {
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies: return;
      case cudaMemPoolAttrReleaseThreshold:
        device.release_threshold = *static_cast<std::uint64_t*>(value);
        return;
      case cudaMemPoolAttrReservedMemHigh:
      case cudaMemPoolAttrUsedMemHigh:
        require(*static_cast<std::uint64_t*>(value) == 0, cudaErrorInvalidValue);
        device.most_used = device.used;
        return;
      default: throw Refusal{cudaErrorInvalidValue};
    }
  });
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  return call_runtime([&](Runtime& runtime) {
    const Device& device = device_of(runtime, pool);
    require(value != nullptr, cudaErrorInvalidValue);
    auto& bytes = *static_cast<std::uint64_t*>(value);
    switch (attribute) {
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies: *static_cast<int*>(value) = 1; return;
      case cudaMemPoolAttrReleaseThreshold: bytes = device.release_threshold; return;
      case cudaMemPoolAttrReservedMemCurrent:
      case cudaMemPoolAttrUsedMemCurrent: bytes = device.used; return;
      case cudaMemPoolAttrReservedMemHigh:
      case cudaMemPoolAttrUsedMemHigh: bytes = device.most_used; return;
    }
    throw Refusal{cudaErrorInvalidValue};
  });
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t) {
  return call_runtime([&](Runtime& runtime) { device_of(runtime, pool); });
}
