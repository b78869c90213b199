// Setting every element to one value: all that core/ itself asks of a kernel.
//
// Counted (./lockstep count --write; docs/counters.md):
//   fill 65536: stores 4.00 (100 %), DRAM 1.00 of the fewest
#include "lockstep/core/cuda/launch.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/gpu/device_memory.h"

namespace lockstep::gpu {
namespace {

/// data (count,) := value. One element per thread; blocks stride over what is more than the grid.
template <class Bits>
__global__ void fill_kernel(Bits* data, std::int64_t count, Bits value) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step)
    data[i] = value;
}

template <class Bits>
void fill_bits(void* data, std::int64_t count, const void* value, Device device) {
  constexpr std::int64_t threads = 256, most_blocks = 4096;
  const std::int64_t blocks = std::min((count + threads - 1) / threads, most_blocks);
  const cuda::Queue queue = cuda::queue_of(device);
  cuda::launch<fill_kernel<Bits>>(
      {.grid = static_cast<unsigned>(blocks), .block = static_cast<unsigned>(threads)},
      queue.stream, static_cast<Bits*>(data), count, *static_cast<const Bits*>(value));
}

}  // namespace

void fill(void* data, std::int64_t count, DType dtype, const void* value, Device device) {
  if (count == 0) return;
  switch (size_of(dtype)) {
    case 1: return fill_bits<std::uint8_t>(data, count, value, device);
    case 2: return fill_bits<std::uint16_t>(data, count, value, device);
    case 4: return fill_bits<std::uint32_t>(data, count, value, device);
    default: return fill_bits<std::uint64_t>(data, count, value, device);
  }
}

}  // namespace lockstep::gpu
