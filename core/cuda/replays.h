#pragma once
/// What a stream knows of the recorded steps that were launched on it: an event after each.

#include <deque>
#include <mutex>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/handle.h"
#include "lockstep/core/gpu/replays.h"

namespace lockstep::cuda {

class ReplaysOnStream {
 public:
  /// A replay has been launched on `stream`.
  void launched(cudaStream_t stream);
  gpu::Replays now();
  /// Waits until fewer than gpu::most_ahead are under way: as HostWait asks, if somebody does.
  void wait_for_room();

 private:
  using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;
  std::mutex mutex_;
  std::deque<EventHandle> under_way_;  ///< the events after them, in order
  EventHandle spare_;
  std::uint64_t ended_ = 0;
};

}  // namespace lockstep::cuda
