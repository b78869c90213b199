#include "lockstep/core/cuda/replays.h"

#include <thread>
#include <utility>

#include "lockstep/core/cuda/state.h"

namespace lockstep {
namespace cuda {

void ReplaysOnStream::launched(cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  EventHandle end = std::move(spare_);
  if (!end) {
    cudaEvent_t made{};
    call("step graph", "cudaEventCreateWithFlags",
         cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
    end = EventHandle(made);
  }
  call("step graph", "cudaEventRecord", cudaEventRecord(end.get(), stream));
  under_way_.push_back(std::move(end));
}

gpu::Replays ReplaysOnStream::now() {
  const std::lock_guard lock(mutex_);
  while (!under_way_.empty()) {
    const cudaError_t answer = cuda::query(under_way_.front().get());
    if (answer == cudaErrorNotReady) break;
    call("step graph", "cudaEventQuery", answer);
    spare_ = std::move(under_way_.front());
    under_way_.pop_front();
    ++ended_;
  }
  return {under_way_.size(), ended_};
}

void ReplaysOnStream::wait_for_room() {
  const auto room = [this] { return now().under_way < gpu::most_ahead; };
  if (!wait_as_asked(room))
    while (!room()) std::this_thread::yield();
}

}  // namespace cuda

gpu::Replays gpu::replays_on(const Stream& stream) { return stream.shared()->replays.now(); }

}  // namespace lockstep
