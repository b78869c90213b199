/// Streams and events as the runtime API has them.

#include <algorithm>

#include "lockstep/simt/execution/limits.h"
#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/runtime/capture.h"

using namespace simt::detail;
namespace limits = simt::limits;

namespace {

CUevent_st& find(Runtime& runtime, cudaEvent_t event) {
  for (const auto& known : runtime.events)
    if (known.get() == event) return *known;
  throw Refusal{cudaErrorInvalidResourceHandle};
}

/// An event that can be waited for by the host.
CUevent_st& find_recorded(Runtime& runtime, cudaEvent_t handle) {
  CUevent_st& event = find(runtime, handle);
  if (event.capture && !event.capture->ended) event.capture->invalid = true;
  require(!event.capture, cudaErrorCapturedEvent);
  runtime.require_sound(event.device);
  return event;
}

/// The stream goes on after a node of a capture: it becomes part of that.
void wait_in_capture(Runtime& runtime, Stream& stream, const CUevent_st& event) {
  const auto& capture = event.capture;
  require(!capture->ended, cudaErrorCapturedEvent);
  require(!capture->invalid, cudaErrorStreamCaptureInvalidated);
  require(&stream != runtime.device(stream.device).null_stream, cudaErrorStreamCaptureUnsupported);
  if (stream.capture && stream.capture != capture) {
    stream.capture->invalid = true;
    invalidate(*capture, cudaErrorStreamCaptureMerge);
  }
  stream.capture = capture;
  capture->join(stream, event.captured_after);
}

}  // namespace

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return call_runtime([&](Runtime& runtime) {
    require(stream != nullptr && (flags & ~cudaStreamNonBlocking) == 0, cudaErrorInvalidValue);
    runtime.may_synchronize("cudaStreamCreate");
    *stream = runtime.make_stream(
        Runtime::current_device(), flags,
        std::clamp(priority, limits::greatest_priority, limits::least_priority));
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, limits::least_priority);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  return call_runtime([&](Runtime& runtime) {
    require(handle != nullptr && handle != cudaStreamLegacy, cudaErrorInvalidResourceHandle);
    Stream& stream = runtime.stream(handle);
    if (const std::shared_ptr<Capture> capture = stream.capture) {
      capture->invalid = true;
      if (capture->origin == &stream) end_capture(runtime, capture);  // nobody else can
      stream.capture.reset();
    }
    stream.destroyed = true;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call_runtime([&](Runtime& runtime) {
    Stream& waited_for = runtime.stream(stream);
    if (!waited_for.capture) refuse_in_capture(runtime);  // stricter than CUDA, as all such below
    runtime.wait_for(waited_for);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call_runtime([&](Runtime& runtime) {
    const Stream& stream = runtime.stream(handle);
    if (stream.capture) invalidate(*stream.capture, cudaErrorStreamCaptureUnsupported);
    refuse_in_capture(runtime);
    runtime.nudge(stream.last);
    return runtime.idle(stream) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return call_runtime([&](Runtime& runtime) {
    require(device != nullptr, cudaErrorInvalidValue);
    *device = runtime.stream(stream).device;
  });
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call_runtime([&](Runtime& runtime) {
    require(priority != nullptr, cudaErrorInvalidValue);
    *priority = runtime.stream(stream).priority;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream_handle, cudaEvent_t event_handle,
                                unsigned flags) {
  return call_runtime([&](Runtime& runtime) {
    Stream& stream = runtime.stream(stream_handle);
    const CUevent_st& event = find(runtime, event_handle);
    require(flags == cudaEventWaitDefault, cudaErrorInvalidValue);
    runtime.require_sound(event.device);
    if (event.capture) return wait_in_capture(runtime, stream, event);
    if (stream.capture) invalidate(*stream.capture, cudaErrorStreamCaptureIsolation);
    if (event.record) runtime.enqueue(stream, {.after = {event.record}});
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return call_runtime([&](Runtime& runtime) {
    require(function != nullptr, cudaErrorInvalidValue);
    submit(runtime, runtime.stream(handle), cudaGraphNodeTypeHost,
           [&runtime, function, data] { runtime.unlocked([&] { function(data); }); });
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return call_runtime([&](Runtime& runtime) {
    require(event != nullptr, cudaErrorInvalidValue);
    require((flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) == 0,
            cudaErrorInvalidValue);
    runtime.events.push_back(std::make_unique<CUevent_st>());
    *event = runtime.events.back().get();
    (*event)->device = Runtime::current_device();
    (*event)->timed = !(flags & cudaEventDisableTiming);
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  return call_runtime([&](Runtime& runtime) {
    const CUevent_st& event = find(runtime, handle);
    std::erase_if(runtime.events, [&event](const auto& one) { return one.get() == &event; });
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event_handle, cudaStream_t stream_handle) {
  return call_runtime([&](Runtime& runtime) {
    CUevent_st& event = find(runtime, event_handle);
    Stream& stream = runtime.stream(stream_handle);
    require(event.device == stream.device, cudaErrorInvalidResourceHandle);
    event.capture = stream.capture;
    if (stream.capture) {
      require(!stream.capture->invalid, cudaErrorStreamCaptureInvalidated);
      event.captured_after = stream.capture->ends[&stream];
    } else {
      event.record = std::make_shared<Mark>();
      runtime.enqueue(stream, {.mark = event.record});
    }
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call_runtime([&](Runtime& runtime) {
    const CUevent_st& event = find_recorded(runtime, handle);
    refuse_in_capture(runtime);
    const int device = event.device;
    if (event.record) runtime.wait(MarkPointer(event.record));
    runtime.require_sound(device);
  });
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call_runtime([&](Runtime& runtime) {
    const CUevent_st& event = find_recorded(runtime, handle);
    const MarkPointer record = event.record;
    const int device = event.device;
    refuse_in_capture(runtime);  // one of the "potentially unsafe" calls of a capturing thread
    runtime.nudge(record);
    runtime.require_sound(device);
    return !record || record->done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call_runtime([&](Runtime& runtime) {
    require(milliseconds != nullptr, cudaErrorInvalidValue);
    const CUevent_st& first = find_recorded(runtime, start);
    const CUevent_st& last = find_recorded(runtime, end);
    refuse_in_capture(runtime);
    require(first.device == last.device, cudaErrorInvalidResourceHandle);
    require(first.timed && last.timed && first.record && last.record,
            cudaErrorInvalidResourceHandle);
    if (!first.record->done || !last.record->done) return cudaErrorNotReady;
    const std::chrono::duration<float, std::milli> time = last.record->time - first.record->time;
    *milliseconds = time.count();
    return cudaSuccess;
  });
}
