// What recordings use. A recorded step reads memory whose owner may end before the step is replayed
// for the last time: it is kept, and released when the last replay has ended.
#include <algorithm>
#include <mutex>

#include "lockstep/core/cuda/state.h"
#include "lockstep/core/gpu/device_memory.h"
#include "lockstep/core/gpu/graph.h"

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

Recording::Recording(std::shared_ptr<Stream::State> on, const Recording* plain)
    : stream(std::move(on)), before(plain) {
  const std::lock_guard lock(living().mutex);
  living().recordings.push_back(this);
  living().any = true;
}

void Recording::begins() { capture = capture_on(stream->stream.get()); }

void Recording::check_survivors() const {
  const std::lock_guard lock(living().mutex);
  std::vector<std::size_t> places = replaced;
  for (const auto& [memory, block] : made) {
    const auto place = std::ranges::find(places, block->bytes);
    check<NotRecordable>(place != places.end(),
                         "[step graph] the step makes a tensor of {} bytes that outlives it, and "
                         "its replays would make no other: copy into one from before the step "
                         "(copy_from), and keep clones of results",
                         block->bytes);
    places.erase(place);
  }
}

void Recording::ends() {
  checks.clear();
  undos.clear();
  const std::lock_guard lock(living().mutex);
  for (const auto& [memory, block] : made) survivors.emplace_back(block, block->references);
  before = nullptr;
}

void Recording::fails() noexcept {
  {
    const std::lock_guard lock(living().mutex);
    for (const auto& [memory, block] : made) block->data = nullptr;
    made.clear();
  }
  for (auto undo = undos.rbegin(); undo != undos.rend(); ++undo) (*undo)();
}

// A survivor that has ended is not looked at: `changed` says so.
bool Recording::holds() const {
  const std::lock_guard lock(living().mutex);
  return !changed && std::ranges::all_of(survivors, [](const auto& survivor) {
    return survivor.first->references == survivor.second;
  });
}

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

bool keep_for_recording(void* memory, const Stream& owner) {
  if (!living().any) return false;
  const unsigned long long capture = capture_on(owner.state().stream.get());
  const std::lock_guard lock(living().mutex);
  Recording* const now = current_recording();
  Recording* keeper = nullptr;
  for (Recording* const it : living().recordings) {
    if (const auto own = it->made.find(memory); own != it->made.end()) {
      if (now && now->before == it) now->replaced.push_back(own->second->bytes);
      if (!it->survivors.empty()) it->changed = true;
      it->made.erase(own);
      continue;
    }
    const bool uses = it->used.contains(memory);
    if (uses && it == now) it->ends_used = true;
    if (uses && it != now) it->changed = true;
    if (uses || it == now || (capture != 0 && it->capture == capture)) keeper = it;
  }
  if (keeper) keeper->kept.emplace_back(memory, owner);
  return keeper != nullptr;
}

void check_captured(const Stream::State& asked) {
  const Recording* const recording = current_recording();
  if (!recording || recording->stream.get() == &asked) return;
  const Device device = recording->stream->device;
  check<NotRecordable>(asked.device == device,
                       "[step graph] a step that is recorded on {} computes on {}, too: a "
                       "recording belongs to one GPU",
                       device.to_string(), asked.device.to_string());
  // Neither is in a capture where a mistake has ended it: then CUDA says which.
  check<NotRecordable>(
      capture_on(asked.stream.get()) == capture_on(recording->stream->stream.get()),
      "[step graph] a step that is recorded works on a stream that does not wait for the step's "
      "(Stream::wait): no replay would do that");
}

}  // namespace cuda

void gpu::note_made(Storage::Block& block) {
  cuda::Recording* const maker = cuda::current_maker();
  if (!maker || !block.data) return;
  const std::lock_guard lock(living().mutex);
  maker->made.emplace(block.data, &block);
}

void gpu::note_use(const void* memory) {
  cuda::Recording* const recording = cuda::current_recording();
  if (!recording) return;
  const std::lock_guard lock(living().mutex);
  if (!recording->made.contains(memory)) recording->used.insert(memory);
}

}  // namespace lockstep
