#pragma once
/// What the opaque handles of stream.h hold.

#include <cuda_runtime.h>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/stream.h"

namespace lockstep {

struct Stream::State {
  Device device;
  cuda::Handle<cudaStream_t, cudaStreamDestroy> stream;
  cuda::Handle<cuda::Faults*, cudaFreeHost> faults;  // page-locked: kernels write, the host reads
};

struct Event::State {
  Device device;
  cuda::Handle<cudaEvent_t, cudaEventDestroy> event;
};

namespace cuda {

/// Throws DeviceError unless this build drives the device and the machine has it.
void check_device(std::string_view operation, Device device);

/// Waits for the stream and throws what went wrong since the last wait.
void wait(std::string_view operation, const Stream::State& stream);

}  // namespace cuda
}  // namespace lockstep
