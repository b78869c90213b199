/// Copies and fills. As on a GPU, what happens before the call returns depends on the host memory:
/// pageable memory has been read, or written, by then; pinned memory is used when the stream is
/// there.

#include <cstring>
#include <memory>

#include "lockstep/simt/races/races.h"
#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/runtime/capture.h"

using namespace simt::detail;

namespace {

enum class Place { pageable, pinned, device };

Place place_of(Runtime& runtime, const void* data, std::size_t bytes) {
  require(data != nullptr, cudaErrorInvalidValue);
  const AllocationPointer known = runtime.find(data, bytes);
  if (!known) return Place::pageable;
  if (known->kind == Allocation::Kind::device) runtime.require_sound(known->device);
  return known->kind == Allocation::Kind::device ? Place::device : Place::pinned;
}

/// Pinned memory may stand for either side: it has one address for host and device.
void check_kind(cudaMemcpyKind kind, Place to, Place from) {
  require(kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault,
          cudaErrorInvalidMemcpyDirection);
  if (kind == cudaMemcpyDefault) return;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  require(to != (to_device ? Place::pageable : Place::device), cudaErrorInvalidValue);
  require(from != (from_device ? Place::pageable : Place::device), cudaErrorInvalidValue);
}

void copy(Runtime& runtime, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
          Stream& stream, bool host_waits) {
  if (bytes == 0) return check_kind(kind, Place::pinned, Place::pinned);
  const Place target = place_of(runtime, to, bytes), source = place_of(runtime, from, bytes);
  check_kind(kind, target, source);
  const auto move = [to, bytes](const void* data) {
    std::memmove(to, data, bytes);
    races::defined(to, bytes);
  };

  if (source == Place::pageable && target != Place::pageable && !stream.capture) {
    const auto* first = static_cast<const std::byte*>(from);
    auto staged = std::make_shared<std::vector<std::byte>>(first, first + bytes);
    submit(runtime, stream, cudaGraphNodeTypeMemcpy, [move, staged] { move(staged->data()); });
  } else {
    submit(runtime, stream, cudaGraphNodeTypeMemcpy, [move, from] { move(from); });
  }
  if (stream.capture) return;
  const bool host_to_host = target != Place::device && source != Place::device;
  const bool device_to_device = target == Place::device && source == Place::device;
  if (target == Place::pageable || host_to_host || (host_waits && !device_to_device))
    runtime.wait_for(stream);
}

void fill(Runtime& runtime, void* data, int value, std::size_t bytes, Stream& stream) {
  if (bytes == 0) return;
  require(place_of(runtime, data, bytes) != Place::pageable, cudaErrorInvalidValue);
  submit(runtime, stream, cudaGraphNodeTypeMemset, [data, value, bytes] {
    std::memset(data, value, bytes);
    races::defined(data, bytes);
  });
}

}  // namespace

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return call_runtime([&](Runtime& runtime) {
    refuse_in_capture(runtime);
    copy(runtime, to, from, bytes, kind, runtime.stream(nullptr), true);
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call_runtime([&](Runtime& runtime) {
    copy(runtime, to, from, bytes, kind, runtime.stream(stream), false);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t handle) {
  return call_runtime([&](Runtime& runtime) {
    runtime.device(to_device);
    runtime.device(from_device);
    Stream& stream = runtime.stream(handle);
    if (bytes == 0) return;
    const AllocationPointer target = runtime.find(to, bytes), source = runtime.find(from, bytes);
    require(target && source && target->device == to_device && source->device == from_device,
            cudaErrorInvalidValue);
    copy(runtime, to, from, bytes, cudaMemcpyDeviceToDevice, stream, false);
  });
}

cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  return call_runtime([&](Runtime& runtime) {
    refuse_in_capture(runtime);
    runtime.may_synchronize("cudaMemset");
    fill(runtime, data, value, bytes, runtime.stream(nullptr));
  });
}

cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  return call_runtime(
      [&](Runtime& runtime) { fill(runtime, data, value, bytes, runtime.stream(stream)); });
}
