// Memory of devices: the stream-ordered allocator of CUDA, and copies.
#include <cstring>

#include "lockstep/core/cuda/pinned.h"
#include "lockstep/core/cuda/state.h"
#include "lockstep/core/gpu/device_memory.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/gpu/stream_slice.h"

namespace lockstep::gpu {

using cuda::call;
using cuda::queue_of;

namespace {

bool on_cpu(Device device) { return device.kind == Device::Kind::cpu; }

// The copy runs on the destination's stream, after what was given to the source's; and the source's
// goes on after it.
void copy_between_devices(void* to, Device to_device, const void* from, Device from_device,
                          std::size_t bytes) {
  const Stream source = Stream::current(from_device), target = Stream::current(to_device);
  const Event written(from_device), copied(to_device);
  written.record(source);
  target.wait(written);
  {
    const cudaStream_t stream = queue_of(to_device).stream;
    const gpu::StreamSlice slice("copy", stream);
    call("copy", "cudaMemcpyPeerAsync",
         cudaMemcpyPeerAsync(to, to_device.index, from, from_device.index, bytes, stream));
  }
  copied.record(target);
  source.wait(copied);
}

/// More than this is copied from where it lies: page-locked memory is never given back.
constexpr std::size_t most_staged = std::size_t{16} << 20;

// From memory that is not page-locked the driver may copy only when the stream is done, and wait
// until then: the host would not go on ahead of the GPU, and wait without a look for ranks that do
// not come. So such memory is copied on the host first.
void copy_staged(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  void* const staged = cuda::take_pinned("copy", bytes);
  std::memcpy(staged, from, bytes);
  call("copy", "cudaMemcpyAsync", cudaMemcpyAsync(to, staged, bytes, cudaMemcpyDefault, stream));
  cuda::keep_pinned_after("copy", staged, stream);
}

}  // namespace

void* allocate(std::size_t bytes, const Stream& stream) {
  if (bytes == 0) return nullptr;  // as a node of a graph it would be refused
  const Stream::State& state = stream.state();
  cuda::check_captured(state);
  call("allocate", "cudaSetDevice", cudaSetDevice(state.device.index));
  void* data = nullptr;
  const cudaError_t error = cudaMallocAsync(&data, bytes, state.stream.get());
  if (error != cudaSuccess)
    cuda::failed("allocate", fmt::format("{} bytes on {}", bytes, state.device.to_string()), error);
  return data;
}

void release(void* data, const Stream& stream) noexcept {
  if (!data) return;
  if (cuda::keep_for_recording(data, stream)) return;
  // Nothing can be done about an error here; a sticky one shows at the next call.
  (void)cudaFreeAsync(data, stream.state().stream.get());
}

void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
  if (bytes == 0) return;
  if (!on_cpu(to_device) && !on_cpu(from_device) && to_device != from_device)
    return copy_between_devices(to, to_device, from, from_device, bytes);
  check<NotRecordable>(
      !on_cpu(from_device) || !StepGraph::recording(),
      "[copy] from the cpu in a step that is being recorded: every replay would read "
      "that memory again");
  const Device device = on_cpu(to_device) ? from_device : to_device;
  const bool pageable = on_cpu(from_device) && !cuda::is_pinned(from);
  const bool staged = pageable && !cuda::ranks_are_threads && bytes <= most_staged;
  // The driver may wait for the stream (into memory that is not page-locked it does), and knows
  // nothing of ranks that do not come.
  if (on_cpu(to_device) || (pageable && !staged))
    cuda::wait("copy", Stream::current(device).state());
  {
    const cudaStream_t stream = queue_of(device).stream;
    const gpu::StreamSlice slice("copy", stream);
    if (staged)
      copy_staged(to, from, bytes, stream);
    else
      call("copy", "cudaMemcpyAsync", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  }
  if (on_cpu(to_device)) cuda::wait("copy", Stream::current(device).state());
}

void fill_zero(void* data, std::size_t bytes, Device device) {
  if (bytes == 0) return;
  const cudaStream_t stream = queue_of(device).stream;
  const gpu::StreamSlice slice("fill_zero", stream);
  call("fill_zero", "cudaMemsetAsync", cudaMemsetAsync(data, 0, bytes, stream));
}

Storage allocate_pinned(std::size_t bytes) {
  if (bytes == 0) return Storage::adopt(nullptr, 0, [] {});
  void* const data = cuda::take_pinned("allocate_pinned", bytes);
  return Storage::adopt(data, bytes, [data] { (void)cuda::keep_pinned(data); });
}

}  // namespace lockstep::gpu
