#pragma once
/// The memory of GPUs as storage.cpp and tensor.cpp use it, without CUDA's headers. Defined in
/// cuda/ in builds with a GPU or the simulator, else in absent.cpp, where everything throws.

#include <cstddef>

#include "lockstep/core/dtype.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/core/storage.h"

namespace lockstep::gpu {

/// In the stream's order, from the device's pool. Throws DeviceError when there is no memory left.
void* allocate(std::size_t bytes, const Stream& stream);
void release(void* data, const Stream& stream) noexcept;
/// Storage::allocate has made it: a step that runs, or is recorded, notes which of its tensors
/// outlive it.
void note_made(Storage::Block& block);
/// An operation is about to use memory of allocate(): a step that is being recorded keeps it.
void note_use(const void* data);

/// Copies between two places of which at least one is a GPU's memory, on the current streams. To
/// the cpu: done when it returns. From the cpu: the source may change as soon as it returns, unless
/// it is page-locked memory.
void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes);

void fill_zero(void* data, std::size_t bytes, Device device);
/// Sets `count` elements of `size_of(dtype)` bytes to the bits of the one at `value` (host memory).
void fill(void* data, std::int64_t count, DType dtype, const void* value, Device device);

}  // namespace lockstep::gpu
