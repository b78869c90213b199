#include "lockstep/core/gpu/stream_slice.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/handle.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/trace/recorder.h"

namespace lockstep::gpu {
namespace {

using EventHandle = cuda::Handle<cudaEvent_t, cudaEventDestroy>;

/// The slices of one thread in one trace. An error of CUDA ends them: it shows at another call,
/// which can say what failed.
class StreamTrace {
 public:
  explicit StreamTrace(trace::Recorder& recorder) : recorder_(recorder) {}

  bool begin(std::string_view name, cudaStream_t stream) {
    int device = 0;
    if (inside_ || !good(cudaGetDevice(&device)) || !has_base(device, stream)) return false;
    under_way_.push_back({take_event(), take_event(), name, stream});
    inside_ = good(cudaEventRecord(under_way_.back().begin.get(), stream));
    if (!inside_) under_way_.pop_back();
    return inside_;
  }
  void end() {
    inside_ = false;
    const Timed& last = under_way_.back();
    if (!good(cudaEventRecord(last.end.get(), last.stream))) return under_way_.pop_back();
    constexpr std::size_t many = 1000;
    if (under_way_.size() >= many) read(false);
  }
  /// Notes the slices that have ended; `all`: waits for each.
  void read(bool all) {
    while (!under_way_.empty() && !broken_) {
      Timed& first = under_way_.front();
      if (!all && cuda::query(first.end.get()) != cudaSuccess) break;
      if (all && !good(cudaEventSynchronize(first.end.get()))) break;
      note(first);
      under_way_.pop_front();
    }
  }

 private:
  struct Timed {
    EventHandle begin, end;
    std::string_view name;
    cudaStream_t stream;
  };

  bool good(cudaError_t error) {
    broken_ |= error != cudaSuccess;
    return !broken_;
  }
  EventHandle take_event() {
    EventHandle event;
    if (!spare_.empty()) {
      event = std::move(spare_.back());
      spare_.pop_back();
    } else if (cudaEvent_t made{}; good(cudaEventCreate(&made))) {
      event = EventHandle(made);
    }
    return event;
  }
  // A moment by both clocks.
  bool has_base(int device, cudaStream_t stream) {
    if (base_) return device == device_;
    device_ = device;
    base_ = take_event();
    if (good(cudaEventRecord(base_.get(), stream)) && good(cudaEventSynchronize(base_.get())))
      base_time_ = recorder_.now();
    return !broken_;
  }
  void note(Timed& slice) {
    float to_begin = 0, to_end = 0;  // milliseconds
    if (!good(cudaEventElapsedTime(&to_begin, base_.get(), slice.begin.get())) ||
        !good(cudaEventElapsedTime(&to_end, base_.get(), slice.end.get())))
      return;
    const auto at = [&](float ms) { return base_time_ + static_cast<std::int64_t>(1e6 * ms); };
    std::int64_t& before = ends_.try_emplace(slice.stream, base_time_).first->second;
    trace::Event event{.kind = trace::Kind::kernel};
    event.begin = std::max(at(to_begin), before);  // what is rounded may overlap
    event.end = before = std::max(at(to_end), event.begin);
    event.communicator = recorder_.number_of_stream(slice.stream);
    event.set_name(slice.name);
    recorder_.add(event);
    spare_.push_back(std::move(slice.begin));
    constexpr float long_ago = 1000;  // a float of many milliseconds has no microseconds
    if (to_end > long_ago) {
      base_time_ = at(to_end);
      std::swap(base_, slice.end);
    }
    spare_.push_back(std::move(slice.end));
  }

  trace::Recorder& recorder_;
  int device_ = 0;
  EventHandle base_;
  std::int64_t base_time_ = 0;
  std::deque<Timed> under_way_;
  std::vector<EventHandle> spare_;
  std::map<cudaStream_t, std::int64_t> ends_;  // of each stream's last slice
  bool inside_ = false, broken_ = false;
};

thread_local std::unique_ptr<StreamTrace> streams;

}  // namespace

StreamSlice::StreamSlice(std::string_view name, void* stream)
    : noted_(trace::here.recorder && !StepGraph::recording()) {
  if (!noted_) return;
  if (!streams) {
    streams = std::make_unique<StreamTrace>(*trace::here.recorder);
    trace::here.recorder->at_end([] {
      streams->read(true);
      streams.reset();
    });
  }
  noted_ = streams->begin(name, static_cast<cudaStream_t>(stream));
}

StreamSlice::~StreamSlice() {
  if (noted_ && streams) streams->end();
}

}  // namespace lockstep::gpu
