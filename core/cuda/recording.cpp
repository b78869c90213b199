// What recordings use. A recorded step reads memory whose owner may end before the step is replayed
// for the last time: it is kept, and released when the last replay has ended.
#include <algorithm>
#include <mutex>

#include "lockstep/core/cuda/state.h"
#include "lockstep/core/gpu/device_memory.h"

namespace lockstep {
namespace {

/// Never destroyed: static objects may be released after it.
struct Living {
  std::mutex mutex;  // also of what they use and keep
  std::vector<cuda::Recording*> recordings;
  std::atomic<bool> any = false;
};

Living& living() {
  static auto* const all = new Living;
  return *all;
}

/// The number of the capture that the stream is in; 0: none.
unsigned long long capture_on(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  unsigned long long number = 0;
  const cudaError_t answer = cudaStreamGetCaptureInfo(stream, &status, &number);
  return answer == cudaSuccess && status == cudaStreamCaptureStatusActive ? number : 0;
}

// Errors are those of a destructor: nothing can be done about them.
void wait_for_replays(const Stream::State& replays, cudaStream_t stream) {
  cudaEvent_t ended{};
  if (cudaSetDevice(replays.device.index) != cudaSuccess) return;
  if (cudaEventCreateWithFlags(&ended, cudaEventDisableTiming) != cudaSuccess) return;
  (void)cudaEventRecord(ended, replays.stream.get());
  (void)cudaStreamWaitEvent(stream, ended, 0);
  (void)cudaEventDestroy(ended);
}

}  // namespace

namespace cuda {

Recording::Recording(std::shared_ptr<Stream::State> on) : stream(std::move(on)) {
  const std::lock_guard lock(living().mutex);
  living().recordings.push_back(this);
  living().any = true;
}

void Recording::begins() { capture = capture_on(stream->stream.get()); }

Recording::~Recording() {
  {
    const std::lock_guard lock(living().mutex);
    std::erase(living().recordings, this);
    living().any = !living().recordings.empty();
  }
  for (const auto& [memory, owner] : kept) {
    if (keep_for_recording(memory, owner)) continue;
    const cudaStream_t releases = owner.state().stream.get();
    if (releases != stream->stream.get()) wait_for_replays(*stream, releases);
    (void)cudaFreeAsync(memory, releases);
  }
}

void note_made(Recording& recording, void* memory) {
  const std::lock_guard lock(living().mutex);
  recording.made.push_back(memory);
}

bool keep_for_recording(void* memory, const Stream& owner) {
  if (!living().any) return false;
  const unsigned long long capture = capture_on(owner.state().stream.get());
  const std::lock_guard lock(living().mutex);
  const auto uses = [&](Recording* it) {
    if (std::erase(it->made, memory) > 0) return false;
    return it->used.contains(memory) || it == current_recording() ||
           (capture != 0 && it->capture == capture);
  };
  const auto user = std::ranges::find_if(living().recordings, uses);
  if (user == living().recordings.end()) return false;
  if (*user == current_recording() && (*user)->used.contains(memory)) (*user)->ends_used = true;
  (*user)->kept.emplace_back(memory, owner);
  return true;
}

}  // namespace cuda

void gpu::note_use(const void* memory) {
  cuda::Recording* const recording = cuda::current_recording();
  if (!recording) return;
  const std::lock_guard lock(living().mutex);
  if (std::ranges::count(recording->made, memory) == 0) recording->used.insert(memory);
}

}  // namespace lockstep
