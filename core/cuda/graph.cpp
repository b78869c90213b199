#include "lockstep/core/gpu/graph.h"

#include <exception>
#include <vector>

#include "lockstep/core/cuda/state.h"
#include "lockstep/core/gpu/stream_slice.h"

namespace lockstep {

using cuda::call;

namespace {

using GraphHandle = cuda::Handle<cudaGraph_t, cudaGraphDestroy>;
using ExecutableHandle = cuda::Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

std::size_t count_kernels(cudaGraph_t graph) {
  std::size_t count = 0, kernels = 0;
  call("step graph", "cudaGraphGetNodes", cudaGraphGetNodes(graph, nullptr, &count));
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
  std::unique_ptr<cuda::Recording> recording;
  ExecutableHandle executable;
  std::size_t kernels = 0;
  int recordings = 0;

  // Asks all conditions: each may have to do something before the step goes on.
  bool holds() const {
    bool all = true;
    for (const auto& unchanged : recording->conditions) all = unchanged() && all;
    return all;
  }
  void record();
};

namespace {

thread_local cuda::Recording* now_recorded = nullptr;

std::exception_ptr error_of(const std::function<void()>& call) {
  try {
    call();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

cuda::Recording* cuda::current_recording() { return now_recorded; }

void StepGraph::State::record() {
  executable = {};
  recording = std::make_unique<cuda::Recording>(stream);
  const cudaStream_t native = stream->stream.get();
  cudaGraph_t graph{};
  call("step graph", "cudaStreamBeginCapture",
       cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal));
  recording->begins();
  now_recorded = recording.get();
  std::exception_ptr error = error_of(step);
  for (const auto& check : recording->checks)
    if (const std::exception_ptr another = error_of(check); !error) error = another;
  now_recorded = nullptr;
  if (error) {
    if (cudaStreamEndCapture(native, &graph) == cudaSuccess && graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    recording.reset();
    std::rethrow_exception(error);
  }
  call("step graph", "cudaStreamEndCapture", cudaStreamEndCapture(native, &graph));
  const GraphHandle recorded(graph);
  kernels = count_kernels(graph);
  cudaGraphExec_t made{};
  call("step graph", "cudaGraphInstantiateWithFlags",
       cudaGraphInstantiateWithFlags(
           &made, graph,
           cudaGraphInstantiateFlagAutoFreeOnLaunch |
               cudaGraphInstantiateFlagUseNodePriority));  // those of the streams recorded
  executable = ExecutableHandle(made);
  ++recordings;
}

StepGraph::StepGraph(std::function<void()> step, Device device)
    : state_(std::make_unique<State>()) {
  state_->step = std::move(step);
  state_->device = device;
}
StepGraph::~StepGraph() = default;
StepGraph::StepGraph(StepGraph&&) noexcept = default;
StepGraph& StepGraph::operator=(StepGraph&&) noexcept = default;

bool StepGraph::operator()() {
  State& state = *state_;
  if (state.device.kind == Device::Kind::cpu) return state.step(), false;
  check<StateError>(!now_recorded, "[step graph] a step that is being recorded runs another one");
  const Stream stream = Stream::current(state.device);
  // As it is, where state may have to be made: the first time, and after a change.
  if (state.stream != stream.shared() || (state.executable && !state.holds())) {
    state.step();
    stream.synchronize();
    if (state.stream) Stream(state.stream).synchronize();  // the old recording may still be running
    state.executable = {};
    state.recording.reset();
    state.stream = stream.shared();
    return false;
  }
  if (!state.executable) {
    stream.synchronize();
    state.record();
  }
  const auto native = static_cast<cudaStream_t>(stream.native());
  call("step graph", "cudaSetDevice", cudaSetDevice(state.device.index));
  state.stream->replays.wait_for_room();
  {
    const gpu::StreamSlice slice("recorded step", native);
    call("step graph", "cudaGraphLaunch", cudaGraphLaunch(state.executable.get(), native));
  }
  state.stream->replays.launched(native);
  return true;
}

std::size_t StepGraph::kernels() const { return state_->kernels; }
int StepGraph::recordings() const { return state_->recordings; }

void StepGraph::depends_on(std::function<bool()> unchanged) {
  if (now_recorded) now_recorded->conditions.push_back(std::move(unchanged));
}

bool StepGraph::recording() { return now_recorded != nullptr; }

bool StepGraph::first_time(const void* key) {
  return now_recorded && now_recorded->seen.insert(key).second;
}

void StepGraph::at_end(std::function<void()> check) {
  if (now_recorded) now_recorded->checks.push_back(std::move(check));
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
