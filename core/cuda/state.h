#pragma once
/// What the opaque handles of stream.h hold.

#include <cuda_runtime.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/fault_sources.h"
#include "lockstep/core/cuda/replays.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/cuda/stream_pool.h"
#include "lockstep/core/storage.h"

namespace lockstep {

struct Stream::State {
  Device device;
  StreamUse use = StreamUse::computing;
  cuda::StreamHandle stream;
  std::shared_ptr<cuda::FaultSource> faults;
  mutable cuda::FaultSources sources;  // its own, and those of what it waits for
  cuda::ReplaysOnStream replays;

  State() = default;
  ~State() {  // kernels under way may still write to `faults`
    if (stream) (void)cudaStreamSynchronize(stream.get());
    if (!faults) return;
    faults->ended = true;
    if (faults->complains()) cuda::left_behind().add(faults);
  }
};

struct Event::State {
  Device device;
  cuda::Handle<cudaEvent_t, cudaEventDestroy> event;
  mutable cuda::FaultSources sources;  // of the streams in which it was recorded
};

namespace cuda {

/// Throws DeviceError unless this build drives the device and the machine has it.
void check_device(std::string_view operation, Device device);

/// A step that runs or is recorded, by the thread that has made this (core/gpu/graph.h), or has
/// been. A recording is launched on `stream`. Memory that it uses is not released before it ends:
/// recording.cpp.
struct Recording {
  /// `before`: the run of the function as it is that comes before a recording.
  explicit Recording(std::shared_ptr<Stream::State> stream, const Recording* before = nullptr);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  void begins();  ///< The stream captures from now on.
  /// The function has ended. Throws NotRecordable if a tensor that it has made outlives it, unless
  /// it has taken the place of one that the run before had made: then each call replaces the last
  /// one's, and replays write it anew.
  void check_survivors() const;
  /// It is complete: replays begin.
  void ends();
  /// It will never be complete: what it has made is lost (Storage::lost), and what the step has
  /// done to the host's state is undone.
  void fails() noexcept;
  /// Whether the tensors that it has made and used belong to the program as they did when it ended.
  bool holds() const;

  std::shared_ptr<Stream::State> stream;
  std::vector<std::function<bool()>> conditions;
  std::map<std::size_t, std::uint64_t> surroundings;  ///< StepGraph::depends_on_surroundings
  std::vector<std::function<void()>> checks;          ///< when its function has ended
  std::vector<std::function<void()>> changes;         ///< by each replay
  std::vector<std::function<void()>> undos;           ///< by fails(), the last one first
  std::set<const void*> seen;                         ///< StepGraph::first_time
  unsigned long long capture = 0;  ///< CUDA's number of the capture that records it; else 0
  /// Memory that its function allocates, and that nothing has released yet.
  std::unordered_map<const void*, Storage::Block*> made;
  const Recording* before;            ///< null when it is complete
  std::vector<std::size_t> replaced;  ///< bytes that `before` has made, and this one releases
  std::vector<std::pair<const Storage::Block*, int>> survivors;  ///< and their references then
  std::set<const void*> used;  ///< memory from before that it reads or writes
  bool ends_used = false;      ///< its function releases some of that for good
  bool changed = false;        ///< of a complete one: others have released such memory
  /// Memory from before that all others have released, and the stream that it belongs to.
  std::vector<std::pair<void*, Stream>> kept;
};
/// Null while none is recorded.
Recording* current_recording();
/// The run, recorded or as it is, to which what is allocated now belongs; or null.
Recording* current_maker();
/// Throws NotRecordable for work on a stream that the step which is being recorded does not have:
/// it would be done now, and by no replay.
void check_captured(const Stream::State& stream);
/// Memory that is released: whether a recording keeps it from now on. It does so if it uses the
/// memory; and if it is being recorded, by the calling thread or on the owner: in a graph CUDA
/// releases only what the graph has allocated.
bool keep_for_recording(void* memory, const Stream& owner);

/// Whether gpu::prepare_for_threads() was called.
inline std::atomic<bool> ranks_are_threads = false;

/// Waits for the stream and throws what went wrong since the last wait.
void wait(std::string_view operation, const Stream::State& stream);
/// Waits until `done` as HostWait asks (core/gpu/host_wait.h). False: nobody asks.
bool wait_as_asked(const std::function<bool()>& done);

}  // namespace cuda
}  // namespace lockstep
