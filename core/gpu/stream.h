#pragma once
/// The order of work on a GPU (or in the simulator). Operations on a stream run one after the
/// other, in the order in which they were given, while the host goes on; operations of different
/// streams are ordered by events alone.
///
/// Every thread has a current stream per device, on which all its tensor operations on that device
/// run. At first it is the thread's own stream, so that ranks that are threads do not wait for each
/// other. A StreamGuard changes it for a scope.
///
/// A tensor's memory belongs to the stream that was current when it was made: it is given back in
/// that stream's order. Code that uses a tensor on another stream, or in another thread, waits
/// there for an event recorded after the tensor was written, and makes the first stream wait before
/// the tensor goes away.
///
/// What makes the host wait: reading (item, to_vector, copies to the cpu), Stream::synchronize.
/// There the errors of earlier operations surface (a bad label or index as DataError, all else as
/// DeviceError, with the kernels that were running): of the stream, of those for whose events it
/// has waited, and of those that have ended before anybody waited for them.
///
/// The processor's stream is always empty: waiting for it returns at once. Thread-safe handles.

#include <cstdint>
#include <memory>
#include <utility>

#include "lockstep/core/device.h"
#include "lockstep/core/system/thread_scope.h"

namespace lockstep {

class Event;

/// What a stream's kernels are for. How they share a GPU's multiprocessors is decided here:
///
///   computing       they take all the room there is.
///   communicating   sums of a collective. Where there is room, their blocks start before waiting
///                   blocks of computing streams (the highest priority), so that a bucket does not
///                   wait for the rest of backward. They are at most 2 blocks of 256 threads for
///                   each multiprocessor, a quarter of what an H100 runs, so that backward goes on
///                   beside them.
///
/// A block that runs is never interrupted. The blocks of Hopper's products take all registers of a
/// multiprocessor until the product ends: a collective waits for that. NCCL sizes its kernels alone
/// (NCCL_MAX_CTAS).
enum class StreamUse : std::uint8_t { computing, communicating };

class Stream {
 public:
  /// The calling thread's current stream of the device. Throws DeviceError where there is no such
  /// device.
  static Stream current(Device device);
  /// The calling thread's second stream of the device. To read what is known to be complete while
  /// the current stream goes on; nothing is left in it. It is made together with the thread's own:
  /// making a stream may wait for the whole GPU, and so for peers.
  static Stream reading(Device device);
  /// Another stream of the device.
  static Stream create(Device device, StreamUse use = StreamUse::computing);

  Device device() const;  ///< whose stream it is
  /// The host waits until everything given so far is done. Throws what went wrong meanwhile.
  void synchronize() const;
  /// Throws what kernels have complained of so far (a bad label or index). Does not wait.
  void check() const;
  /// What is given from now on runs after `event`. Does not block the host.
  void wait(const Event& event) const;
  /// The cudaStream_t; null on the cpu.
  void* native() const;

  struct State;
  /// For core/ alone.
  explicit Stream(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const State& state() const { return *state_; }
  const std::shared_ptr<State>& shared() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

/// Makes a stream current for this thread, in a scope.
class [[nodiscard]] StreamGuard : public ThreadScope<StreamGuard> {
 public:
  /// Until it ends, `stream` is current for its device.
  explicit StreamGuard(Stream stream) : ThreadScope("StreamGuard"), stream_(std::move(stream)) {}
  const Stream& stream() const { return stream_; }

 private:
  Stream stream_;
};

/// A point in a stream's order.
class Event {
 public:
  /// `timed` events can be subtracted; they cost more.
  explicit Event(Device device, bool timed = false);
  /// The point after everything that the stream was given so far.
  void record(const Stream& stream) const;
  void synchronize() const;
  bool done() const;
  /// Milliseconds from `earlier` to this one; both timed, recorded and done.
  double milliseconds_since(const Event& earlier) const;

  struct State;
  /// For core/ alone.
  const State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
