#pragma once
/// A step that is recorded once and then replayed: launching a kernel costs the host some
/// microseconds, so a small model's step is bound by its launches; a graph is launched as one.
///
///   StepGraph step([&] {
///     Tape tape;
///     Tensor loss = nn::cross_entropy(model(x), y);     // x, y: tensors that stay where they are
///     tape.backward(loss);
///     optimizer.step();
///     optimizer.zero_grad();
///     loss_sum.copy_from(loss);                        // results: copied, to be read later
///   }, device);
///   for (...) { x.copy_from(batch.x); y.copy_from(batch.y); step(); }
///
/// The first call runs the function as it is (state is made there: momentum, gradients). The second
/// records it and launches what was recorded; from then on calls only launch. The function
/// therefore runs on the host twice: what it does besides enqueueing work, it does twice. It may
/// not wait for the device (item, to_vector, copies to the cpu). Nor may it copy from the cpu,
/// whose memory every replay would read again. Both are a StateError, and the graph stays
/// unrecorded. A tensor that lives longer than the step is made before it, and copied into.
///
/// A step with dropout cannot be recorded yet (StateError): what it draws would be part of the
/// recording.
///
/// What the host decides while the function is recorded is part of the recording: shapes, learning
/// rates, which parameters have gradients. Code that reads such a value says so with
/// `StepGraph::depends_on`. When it has changed at a later call, that call runs the function as it
/// is, and the next one records it anew. Parameters do this (what requires a gradient, what has
/// one), modules for their mode, optimizers for their options and for where their state lies; and
/// all of them when they end, or are assigned to: so a model may be replaced. What your own
/// function reads besides, such as a number, stays as it was recorded; also a tensor, whose memory
/// lives as long as the recording (but that of Communicator::allocate does not).
///
/// What the step leaves on the host, a replay does not. So a step that leaves a gradient which it
/// did not begin with is refused (StateError): it ends with zero_grad(), or begins with it.
///
/// What the function refers to must be there in every call.
///
/// On the cpu every call runs the function. Not thread-safe; distinct graphs in distinct threads
/// are.

#include <functional>
#include <memory>
#include <utility>

#include "lockstep/core/device.h"
#include "lockstep/core/system/lifetime.h"

namespace lockstep {

class StepGraph {
 public:
  /// `step` is run and recorded on `device` by the first calls; nothing happens yet.
  StepGraph(std::function<void()> step, Device device);
  ~StepGraph();
  StepGraph(StepGraph&&) noexcept;
  StepGraph& operator=(StepGraph&&) noexcept;

  /// Enqueues one step on the thread's current stream of the device; the first two calls wait. On
  /// another stream than before it begins again: it runs the function, then records it.
  /// Returns whether it launched a recording.
  bool operator()();

  /// How many kernels the recording launches; 0 before it is recorded, and on the cpu.
  std::size_t kernels() const;
  /// How often the step has been recorded.
  int recordings() const;

  /// Called while a step is recorded (elsewhere it does nothing): `unchanged` tells before each
  /// replay whether the recording still holds.
  static void depends_on(std::function<bool()> unchanged);
  /// The same for what `owner` refers to: when that has ended, it is not asked, and has changed.
  static void depends_on(Lifetime::Ref owner, std::function<bool()> unchanged) {
    depends_on([owner = std::move(owner), unchanged = std::move(unchanged)] {
      const auto living = owner.lock();
      return living && unchanged();
    });
  }
  /// Whether the thread records, and this is the first call with this key in this recording.
  static bool first_time(const void* key);
  /// Called while a step is recorded: `check` is called when its function has ended, also by an
  /// exception, and may throw. All are called; the first exception is thrown.
  static void at_end(std::function<void()> check);
  /// Whether the calling thread is recording a step.
  static bool recording();
  class Pause;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// While it lives, the calling thread records nothing: it may wait for work that was enqueued
/// before the recording, and read results of it, on other streams than that of the step. Does
/// nothing outside of a recording.
class [[nodiscard]] StepGraph::Pause {
 public:
  Pause();
  ~Pause();
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;
  bool paused() const { return recording_ != nullptr; }  ///< there is a recording

 private:
  void* recording_;
  int mode_ = 0;  // of the thread's captures
};

}  // namespace lockstep
