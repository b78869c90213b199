#pragma once
/// What the opaque handles of stream.h hold.

#include <cuda_runtime.h>

#include <atomic>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/pinned.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/cuda/stream_pool.h"

namespace lockstep {

namespace cuda {
inline cudaError_t keep_faults(Faults* faults) { return keep_pinned(faults); }
}  // namespace cuda

struct Stream::State {
  Device device;
  StreamUse use = StreamUse::computing;
  cuda::StreamHandle stream;
  cuda::Handle<cuda::Faults*, cuda::keep_faults> faults;  // kernels write, the host reads

  State() = default;
  ~State() {  // kernels under way may still write to `faults`
    if (stream) (void)cudaStreamSynchronize(stream.get());
  }
};

struct Event::State {
  Device device;
  cuda::Handle<cudaEvent_t, cudaEventDestroy> event;
};

namespace cuda {

/// Throws DeviceError unless this build drives the device and the machine has it.
void check_device(std::string_view operation, Device device);

/// A step that the calling thread is recording (core/gpu/graph.h).
struct Recording {
  std::vector<std::function<bool()>> conditions;
  std::vector<std::function<void()>> checks;  ///< when its function has ended
  std::set<const void*> seen;                 ///< StepGraph::first_time
  std::vector<void*> made;  ///< memory that the recording allocates, and has not released yet
  /// Memory from before, dropped in the step. What is recorded may use it: it goes with the
  /// recording. (And CUDA refuses to release in a graph what the graph did not allocate.)
  std::vector<std::pair<void*, Stream>> dropped;

  ~Recording() {
    for (const auto& [data, owner] : dropped) (void)cudaFreeAsync(data, owner.state().stream.get());
  }
};
/// Null while none is recorded.
Recording* current_recording();

/// Whether gpu::prepare_for_threads() was called.
inline std::atomic<bool> ranks_are_threads = false;

/// Waits for the stream and throws what went wrong since the last wait.
void wait(std::string_view operation, const Stream::State& stream);

}  // namespace cuda
}  // namespace lockstep
