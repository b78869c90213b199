#pragma once
/// When a stream runs what it was given, for a trace (core/trace/recorder.h). The thread only
/// enqueues; its own slices say when.
///
///   const StreamSlice slice("copy", stream);
///   cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
///
/// How: a timed event before the work and one behind it. Their times are read later, when both are
/// done, at the latest by Trace::write(). The device's clock is set against the recorder's once, at
/// the first slice: that one waits for its stream. While no Recorder is current, a slice costs one
/// read of a thread-local pointer.
///
/// Work that is enqueued within a slice gets no second one: a collective is one slice. A step that
/// is being recorded (StepGraph) has none; each replay is one. A thread that uses several devices
/// has slices of the first alone.

#include <string_view>

namespace lockstep::gpu {

class [[nodiscard]] StreamSlice {
 public:
  /// `name` must live until the trace is written. `stream`: a cudaStream_t (Stream::native).
  StreamSlice(std::string_view name, void* stream);
  ~StreamSlice();
  StreamSlice(const StreamSlice&) = delete;
  StreamSlice& operator=(const StreamSlice&) = delete;

 private:
  bool noted_;
};

}  // namespace lockstep::gpu
