#pragma once
/// What one thread does, and when: the events of a trace. The layers note events where they happen;
/// dist::Trace (dist/observe/trace.h) turns this on and writes files.
///
///   slices of the thread:  | linear | relu | ... || relu |progress| linear |  wait  | SGD |
///                             forward                 backward
///   instants of the thread:                               ^ 4.weight is ready   ^ commit
///   values, by name:                                                            ^ train/loss 0.31
///   slices of a communicator:                      |----- all-reduce 'bucket 0' -----|
///                                                  | step 1 | step 2 | ...
///   slices of a GPU's stream:         | matmul_kernel |relu_kernel|   | copy |
///
/// While no recorder observes the thread (core/trace/observers.h), a place that could note
/// something costs one read of a thread-local pointer.
///
/// Thread-safety: a Recorder belongs to one thread.

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/core/trace/observers.h"

namespace lockstep::trace {

/// What an event is. In brackets: what its numbers mean, in their order.
enum class Kind : std::uint8_t {
  // Slices of the thread. Two of them are apart, or one contains the other.
  forward,    ///< an operation computes, from its first kernel on
  backward,   ///< an operation's gradients are computed
  optimizer,  ///< a step of an optimizer
  load,       ///< a batch is put together [rows, position in the epoch]
  call,       ///< a collective is called, and begins if none is under way []
  progress,   ///< the thread moves collectives on; only if something moved []
  wait,       ///< the thread waits for a collective []
  idle,       ///< within a wait: nothing moves before a rank does something [that rank]
  // Instants of the thread.
  ready,     ///< a parameter's gradient [bucket, gradients of the bucket still to come]
  launched,  ///< a bucket is handed over to its collective [bucket, bytes]
  verdict,   ///< of a synchronization: commit, skip, stop or deferred
  value,     ///< a number of the program, such as a loss [its step, the bits of a double]
  // Slices of a communicator, which do not overlap; a step lies within its collective.
  collective,  ///< [sequence, operation, algorithm, elements, bytes, ns when called, root]
  step,        ///< of its plan [number, to, send from, up to, from, receive from, up to,
               ///< action + 256 * into]
  // Slices of a stream, which do not overlap (core/gpu/stream_slice.h).
  kernel,  ///< a kernel, a copy, a collective or a recorded step runs []
};
constexpr std::size_t kinds = static_cast<std::size_t>(Kind::kernel) + 1;

using Numbers = std::array<std::int64_t, 8>;

struct Event {
  std::int64_t begin = 0, end = 0;  ///< nanoseconds of the recorder's clock; equal for an instant
  Numbers numbers{};
  std::array<char, 46> name{};  ///< cut to fit, ends with a zero
  Kind kind = Kind::forward;
  std::uint8_t communicator = 0;  ///< which one, for its slices; for a kernel, which stream; or
                                  ///< `no_track`

  static constexpr std::uint8_t no_track = 255;

  void set_name(std::string_view text) {
    *std::copy_n(text.begin(), std::min(text.size(), name.size() - 1), name.begin()) = 0;
  }
};

class Recorder {
 public:
  /// Nanoseconds since any fixed time.
  using Clock = std::function<std::int64_t()>;

  /// Keeps the first `most` events that have a track, and counts the others.
  Recorder(Clock clock, std::size_t most) : clock_(std::move(clock)), most_(most) {}

  std::int64_t now() const { return clock_(); }
  void add(const Event& event);
  /// An event of now, or of the time `ago` before.
  void instant(Kind kind, std::string_view name, const Numbers& numbers = {},
               std::chrono::nanoseconds ago = {});

  /// Kernels run without knowing for which operation; the operation is noted when it has ended.
  void kernel_begins() {
    if (computing_since_ < 0) computing_since_ = now();
  }
  void forward_ends(const char* operation);

  /// Nothing moves before `rank` does something, from `begin` until now. Lengthens the last event
  /// if it says the same.
  void idle(int rank, std::int64_t begin);

  /// 0, 1, ... for each communicator, in the order in which they are met; then Event::no_track.
  std::uint8_t number_of(const void* communicator) {
    return place_of(communicator, communicators_);
  }
  std::uint8_t number_of_stream(const void* stream) { return place_of(stream, streams_); }

  /// `add` still has events: settle() calls it, once. Before the events are read.
  void at_end(std::function<void()> add) { at_end_ = std::move(add); }
  void settle() {
    if (const auto add = std::exchange(at_end_, nullptr)) add();
  }

  const std::vector<std::vector<Event>>& events() const { return chunks_; }
  std::size_t size() const { return size_; }
  std::size_t dropped() const { return dropped_; }

 private:
  friend class Slice;
  static std::uint8_t place_of(const void* one, std::vector<const void*>& all);

  Clock clock_;
  std::size_t most_, size_ = 0, dropped_ = 0;
  std::vector<std::vector<Event>> chunks_;  // so that a long trace is never copied
  std::vector<const void*> communicators_, streams_;
  std::function<void()> at_end_;
  std::int64_t computing_since_ = -1;  // the first kernel's begin; -1: none has begun
};

/// `name`, or, if it is too long for an event, one that fits and differs for each.
std::string distinct_name(std::string_view name);

/// An operation has computed its result.
inline void forward_ends(const char* operation) {
  if (here.recorder) here.recorder->forward_ends(operation);
}

inline void ready(std::string_view parameter, std::int64_t bucket, std::int64_t pending) {
  if (here.recorder) here.recorder->instant(Kind::ready, parameter, {bucket, pending});
}
inline void launched(std::string_view name, std::int64_t bucket, std::size_t bytes) {
  if (here.recorder)
    here.recorder->instant(Kind::launched, name, {bucket, static_cast<std::int64_t>(bytes)});
}
inline void verdict(std::string_view text) {
  if (here.recorder) here.recorder->instant(Kind::verdict, text);
}
/// A number that the program had the time `ago` before now, and at which step by its own count.
/// nn::Metrics calls it (nn/metrics/metrics.h). A name of more than 45 bytes is cut, and still
/// differs from others: its beginning, a checksum of all of it, its end.
inline void value(std::string_view name, std::int64_t step, double number,
                  std::chrono::nanoseconds ago = {}) {
  if (here.recorder)
    here.recorder->instant(Kind::value, distinct_name(name),
                           {step, std::bit_cast<std::int64_t>(number)}, ago);
}

/// A slice of the thread, as long as this object lives. `name` must live longer.
class Slice {
 public:
  Slice(Kind kind, std::string_view name, const Numbers& numbers = {}) : recorder_(here.recorder) {
    if (recorder_) start(kind, name, numbers);
  }
  ~Slice() {
    if (recorder_) end();
  }
  Slice(const Slice&) = delete;
  Slice& operator=(const Slice&) = delete;

  bool noted() const { return recorder_ != nullptr; }
  void give_up() { recorder_ = nullptr; }  ///< nothing is noted

 private:
  void start(Kind kind, std::string_view name, const Numbers& numbers);
  void end();

  Recorder* recorder_;
  Kind kind_{};
  std::string_view name_;
  Numbers numbers_;
  std::int64_t begin_, outer_;  // outer_: since when the operation computes in which this happens
};

}  // namespace lockstep::trace
