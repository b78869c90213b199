#include "lockstep/core/gpu/graph.h"

#include <exception>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/core/cuda/state.h"
#include "lockstep/core/gpu/stream_slice.h"
#include "lockstep/core/trace/observers.h"

namespace lockstep {

using cuda::call;

namespace {

using GraphHandle = cuda::Handle<cudaGraph_t, cudaGraphDestroy>;
using ExecutableHandle = cuda::Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

std::size_t count_kernels(cudaGraph_t graph, Device device) {
  std::size_t count = 0, kernels = 0;
  call("step graph", "cudaGraphGetNodes", cudaGraphGetNodes(graph, nullptr, &count));
  check<NotRecordable>(
      count > 0,
      "[step graph] the step does nothing on {}, so a recording would be empty: are "
      "the model and its batch there?",
      device.to_string());
  std::vector<cudaGraphNode_t> nodes(count);
  call("step graph", "cudaGraphGetNodes", cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    if (cudaGraphNodeGetType(node, &type) == cudaSuccess)
      kernels += type == cudaGraphNodeTypeKernel;
    else
      (void)cudaGetLastError();  // the driver's (waits for peers): the runtime has no name for them
  }
  return kernels;
}

}  // namespace

struct StepGraph::State {
  std::function<void()> step;
  Device device;
  // Where the step has been run as it is; a recording belongs to it, and writes to its mailbox.
  std::shared_ptr<Stream::State> stream;
  std::unique_ptr<cuda::Recording> recording;  // or what the run before it has read
  ExecutableHandle executable;
  std::size_t kernels = 0;
  int recordings = 0;

  bool holds() const;
  void run();
  void record();
  GraphHandle capture(cuda::Recording& now) const;
  void instantiate(const GraphHandle& graph);
  void launch();
};

namespace {

thread_local cuda::Recording* now_recorded = nullptr;
thread_local cuda::Recording* now_noted = nullptr;  // recorded, or run as it is

std::exception_ptr error_of(const std::function<void()>& call) {
  try {
    call();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

struct Surroundings {
  std::mutex mutex;
  std::vector<std::uint64_t (*)()> states;
};

Surroundings& surroundings() {
  static auto* const all = new Surroundings;  // never destroyed
  return *all;
}

// Without what is as at first, so that a kind that nobody had asked for yet changes nothing.
std::map<std::size_t, std::uint64_t> look_around() {
  const std::lock_guard lock(surroundings().mutex);
  std::map<std::size_t, std::uint64_t> states;
  for (std::size_t i = 0; i < surroundings().states.size(); ++i)
    if (const std::uint64_t now = surroundings().states[i]()) states[i] = now;
  return states;
}

// As `total = total + loss` does with the old total.
void check_ends_nothing_used(const cuda::Recording& recording) {
  check<NotRecordable>(
      !recording.ends_used,
      "[step graph] the step puts something else in the place of a tensor from before "
      "it, after it has used that: each replay would use the old one again. Write "
      "into the tensor instead (copy_from)");
}

}  // namespace

cuda::Recording* cuda::current_recording() { return now_recorded; }

// Not what is made in a Pause: it is no part of the graph.
cuda::Recording* cuda::current_maker() {
  return now_noted && now_noted->capture != 0 ? now_recorded : now_noted;
}

// Asks all conditions: each may have to do something before the step goes on.
bool StepGraph::State::holds() const {
  bool all = recording->holds() && recording->surroundings == look_around();
  for (const auto& unchanged : recording->conditions) all = unchanged() && all;
  return all;
}

// As it is. What it reads is noted: if that changes before it is recorded, state may have to be
// made again.
void StepGraph::State::run() {
  recording = std::make_unique<cuda::Recording>(stream);
  recording->surroundings = look_around();
  cuda::Recording* const outside = std::exchange(now_noted, recording.get());
  const bool noted_outside = std::exchange(noting_, true);
  const std::exception_ptr error = error_of(step);
  now_noted = outside;
  noting_ = noted_outside;
  if (error) {
    recording.reset();
    std::rethrow_exception(error);
  }
}

void StepGraph::State::record() {
  executable = {};
  const std::unique_ptr<cuda::Recording> before = std::exchange(recording, nullptr);
  auto now = std::make_unique<cuda::Recording>(stream, before.get());
  try {
    instantiate(capture(*now));
    launch();
  } catch (...) {
    executable = {};
    now->fails();
    throw;
  }
  now->ends();
  recording = std::move(now);
  ++recordings;
}

GraphHandle StepGraph::State::capture(cuda::Recording& now) const {
  now.surroundings = look_around();
  const cudaStream_t native = stream->stream.get();
  cudaGraph_t graph{};
  call("step graph", "cudaStreamBeginCapture",
       cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
  now.begins();
  now.checks.emplace_back([&now] { check_ends_nothing_used(now); });
  now.checks.emplace_back([&now] { now.check_survivors(); });
  now_recorded = now_noted = &now;
  noting_ = true;
  std::exception_ptr error = error_of(step);
  for (const auto& check : now.checks)
    if (!error) error = error_of(check);
  now_recorded = now_noted = nullptr;
  noting_ = false;
  if (error) {
    if (cudaStreamEndCapture(native, &graph) == cudaSuccess && graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    std::rethrow_exception(error);
  }
  call("step graph", "cudaStreamEndCapture", cudaStreamEndCapture(native, &graph));
  return GraphHandle(graph);
}

void StepGraph::State::instantiate(const GraphHandle& graph) {
  kernels = count_kernels(graph.get(), device);
  cudaGraphExec_t made{};
  call("step graph", "cudaGraphInstantiateWithFlags",
       cudaGraphInstantiateWithFlags(
           &made, graph.get(),
           cudaGraphInstantiateFlagAutoFreeOnLaunch |
               cudaGraphInstantiateFlagUseNodePriority));  // those of the streams recorded
  executable = ExecutableHandle(made);
}

void StepGraph::State::launch() {
  const cudaStream_t native = stream->stream.get();
  call("step graph", "cudaSetDevice", cudaSetDevice(device.index));
  stream->replays.wait_for_room();
  {
    const gpu::StreamSlice slice("recorded step", native);
    call("step graph", "cudaGraphLaunch", cudaGraphLaunch(executable.get(), native));
  }
  stream->replays.launched(native);
}

StepGraph::StepGraph(std::function<void()> step, Device device)
    : state_(std::make_unique<State>()) {
  check<UsageError>(step != nullptr, "[step graph] an empty function");
  state_->step = std::move(step);
  state_->device = device;
}
StepGraph::~StepGraph() = default;
StepGraph::StepGraph(StepGraph&&) noexcept = default;
StepGraph& StepGraph::operator=(StepGraph&&) noexcept = default;

StepGraph::State& StepGraph::state() const {
  check<StateError>(state_ != nullptr, "[step graph] it was moved away");
  return *state_;
}

bool StepGraph::operator()() {
  State& state = this->state();
  if (state.device.kind == Device::Kind::cpu) return state.step(), false;
  check<NotRecordable>(!now_recorded,
                       "[step graph] a step that is being recorded runs another one");
  const Stream stream = Stream::current(state.device);
  // As it is, where state may have to be made: the first time, and after a change; and where each
  // result is watched.
  if (state.stream != stream.shared() || !state.recording || trace::here.watcher ||
      !state.holds()) {
    if (state.executable) Stream(state.stream).synchronize();  // its last replay may still run
    state.executable = {};
    state.stream = stream.shared();
    state.run();
    return false;
  }
  if (!state.executable) {
    stream.synchronize();
    state.record();
    return true;
  }
  state.launch();
  for (const auto& change : state.recording->changes) change();
  return true;
}

std::size_t StepGraph::kernels() const { return state().kernels; }
int StepGraph::recordings() const { return state().recordings; }

void StepGraph::depends_on(std::function<bool()> unchanged) {
  if (now_noted) now_noted->conditions.push_back(std::move(unchanged));
}

bool StepGraph::recording() { return now_recorded != nullptr; }

bool StepGraph::first_time(const void* key) {
  return now_noted && now_noted->seen.insert(key).second;
}

void StepGraph::depends_on_surroundings(std::uint64_t (*state)()) {
  const std::lock_guard lock(surroundings().mutex);
  surroundings().states.push_back(state);
}

void StepGraph::at_replay(std::function<void()> change) {
  if (now_recorded) now_recorded->changes.push_back(std::move(change));
}

void StepGraph::at_end(std::function<void()> check) {
  if (now_recorded) now_recorded->checks.push_back(std::move(check));
}

void StepGraph::at_failure(std::function<void()> undo) {
  if (now_recorded) now_recorded->undos.push_back(std::move(undo));
}

// A thread that captures may not ask for events, nor wait: its capture would be void. In the mode
// `relaxed` it may (CUDA Runtime API, cudaThreadExchangeStreamCaptureMode).
StepGraph::Pause::Pause() : recording_(now_recorded) {
  if (!recording_) return;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  call("step graph", "cudaThreadExchangeStreamCaptureMode",
       cudaThreadExchangeStreamCaptureMode(&mode));
  mode_ = static_cast<int>(mode);
  now_recorded = nullptr;
}

StepGraph::Pause::~Pause() {
  if (!recording_) return;
  now_recorded = static_cast<cuda::Recording*>(recording_);
  auto mode = static_cast<cudaStreamCaptureMode>(mode_);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

}  // namespace lockstep
