#include "lockstep/simt/runtime/capture.h"

#include <algorithm>
#include <utility>

#include "lockstep/simt/runtime/call.h"

namespace simt::detail {

GraphContent::~GraphContent() {
  auto& allocations = Runtime::get().allocations;
  for (const AllocationPointer& one : memory) {
    one->of_graph = false;
    if (!one->live) allocations.erase(reinterpret_cast<std::uintptr_t>(one->data));
  }
}

void Capture::add(const Stream& stream, cudaGraphNodeType type, Begin begin,
                  std::optional<Waits> waits) {
  std::vector<int>& end = ends[&stream];
  content->nodes.push_back({type, std::move(begin), std::move(end), std::move(waits)});
  end = {static_cast<int>(content->nodes.size()) - 1};
}

void Capture::join(const Stream& stream, const std::vector<int>& nodes) {
  std::vector<int>& end = ends[&stream];
  end.insert(end.end(), nodes.begin(), nodes.end());
  std::sort(end.begin(), end.end());
  end.erase(std::unique(end.begin(), end.end()), end.end());
}

bool Capture::is_joined() const {
  std::vector<char> before(content->nodes.size());
  for (const int node : ends.at(origin)) before[node] = true;
  for (std::size_t node = before.size(); node-- > 0;)  // a node comes after earlier ones only
    if (before[node])
      for (const int earlier : content->nodes[node].after) before[earlier] = true;
  return std::all_of(ends.begin(), ends.end(), [&before](const auto& stream) {
    return std::all_of(stream.second.begin(), stream.second.end(),
                       [&before](int node) { return before[node]; });
  });
}

namespace {

/// A capturing stream for which work of `stream` would wait, if that is the legacy default stream;
/// or null.
Stream* captures_before(Runtime& runtime, const Stream& stream) {
  if (&stream != runtime.device(stream.device).null_stream) return nullptr;
  for (const auto& other : runtime.streams)
    if (other->capture && other->blocking && other->device == stream.device) return other.get();
  return nullptr;
}

}  // namespace

void invalidate(Capture& capture, cudaError_t error) {
  capture.invalid = true;
  throw Refusal{error};
}

void submit(Runtime& runtime, Stream& stream, cudaGraphNodeType type, std::function<void()> run) {
  const auto begin = [run = std::move(run)]() -> Run {
    return [run] {
      run();
      return true;
    };
  };
  submit_run(runtime, stream, type, begin, std::nullopt);
}

void submit_run(Runtime& runtime, Stream& stream, cudaGraphNodeType type, Begin begin,
                std::optional<Waits> waits) {
  if (stream.capture) {
    require(!stream.capture->invalid, cudaErrorStreamCaptureInvalidated);
    stream.capture->add(stream, type, std::move(begin), std::move(waits));
    return;
  }
  if (Stream* other = captures_before(runtime, stream))
    invalidate(*other->capture, cudaErrorStreamCaptureImplicit);
  Operation operation{.run = begin(), .waits = std::move(waits)};
  if (type == cudaGraphNodeTypeHost) operation.host_function_of = std::this_thread::get_id();
  runtime.enqueue(stream, std::move(operation));
}

void end_capture(Runtime& runtime, const std::shared_ptr<Capture>& capture) {
  for (const auto& stream : runtime.streams)
    if (stream->capture == capture) stream->capture.reset();
  std::erase(runtime.captures, capture);
  capture->ended = true;
}

void refuse_in_capture(Runtime& runtime) {
  const cudaStreamCaptureMode mode = this_thread.capture_mode;
  if (mode == cudaStreamCaptureModeRelaxed) return;
  bool prohibited = false;
  for (const auto& capture : runtime.captures) {
    const bool here = capture->thread == std::this_thread::get_id();
    if (here ? capture->mode != cudaStreamCaptureModeRelaxed
             : capture->mode == cudaStreamCaptureModeGlobal && mode == cudaStreamCaptureModeGlobal)
      capture->invalid = prohibited = true;
  }
  require(!prohibited, cudaErrorStreamCaptureUnsupported);
}

}  // namespace simt::detail

using namespace simt::detail;

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call_runtime([&](Runtime& runtime) {
    Stream& stream = runtime.stream(handle);
    require(&stream != runtime.device(stream.device).null_stream,
            cudaErrorStreamCaptureUnsupported);
    require(!stream.capture, cudaErrorIllegalState);
    static unsigned long long captures_begun = 0;
    auto capture = std::make_shared<Capture>(
        Capture{.mode = mode, .id = ++captures_begun, .origin = &stream, .ends = {{&stream, {}}}});
    runtime.captures.push_back(capture);
    stream.capture = std::move(capture);
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  return call_runtime([&](Runtime& runtime) {
    require(graph != nullptr, cudaErrorInvalidValue);
    *graph = nullptr;
    const std::shared_ptr<Capture> capture = runtime.stream(handle).capture;
    require(capture != nullptr, cudaErrorIllegalState);
    require(capture->origin == handle, cudaErrorStreamCaptureUnmatched);
    require(capture->mode == cudaStreamCaptureModeRelaxed ||
                capture->thread == std::this_thread::get_id(),
            cudaErrorStreamCaptureWrongThread);
    end_capture(runtime, capture);
    require(!capture->invalid, cudaErrorStreamCaptureInvalidated);
    require(capture->is_joined(), cudaErrorStreamCaptureUnjoined);
    runtime.graphs.push_back(std::make_unique<CUgraph_st>(CUgraph_st{std::move(capture->content)}));
    *graph = runtime.graphs.back().get();
  });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id) {
  return call_runtime([&](Runtime& runtime) {
    require(status != nullptr, cudaErrorInvalidValue);
    const Stream& stream = runtime.stream(handle);
    require(!captures_before(runtime, stream), cudaErrorStreamCaptureImplicit);
    const auto& capture = stream.capture;
    *status = !capture           ? cudaStreamCaptureStatusNone
              : capture->invalid ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
    if (id && capture) *id = capture->id;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr);
}

// A broken context does not keep a thread from putting its mode back.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call_runtime<Context::not_needed>([&](Runtime&) {
    require(mode != nullptr && *mode >= cudaStreamCaptureModeGlobal &&
                *mode <= cudaStreamCaptureModeRelaxed,
            cudaErrorInvalidValue);
    std::swap(*mode, this_thread.capture_mode);
  });
}
