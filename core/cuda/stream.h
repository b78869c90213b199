#pragma once
/// Streams as kernels' launchers and the runtime see them.

#include <cuda_runtime.h>

#include <cstdint>

#include "lockstep/core/cuda/handle.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

/// What a kernel can complain of, in page-locked memory that it writes to directly: zero means
/// nothing. One 8-byte store per complaint, so that it is whole whichever thread's comes last. Read
/// and cleared at the next wait, which throws.
struct Faults {
  /// cross_entropy: (1 + the sample's index) * 2^32 + the low 32 bits of its label.
  unsigned long long bad_label;
  /// take: 2^31 + the low 31 bits of the dimension's size, times 2^32, + the low 32 of the index.
  unsigned long long bad_index;
};

/// Where to launch: the current stream of a device, which becomes the thread's current device.
struct Queue {
  cudaStream_t stream;
  Faults* faults;
  StreamUse use;
};
Queue queue_of(Device device);
inline Queue queue_of(const Tensor& tensor) { return queue_of(tensor.device()); }

/// Multiprocessors of the device: what a grid is sized by.
int multiprocessors(Device device);

}  // namespace lockstep::cuda
