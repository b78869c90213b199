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
/// whose memory every replay would read again; compute on the cpu, or on another GPU; or do nothing
/// on this one. All are a StateError; the next call runs the function as it is again. A tensor that
/// lives longer than the step is made before it, and copied into: to put another in its place after
/// a use (`total = total + loss`) is a StateError, too, unless something else still holds the old
/// one. So is a step that keeps what it makes (push_back). But a result that each call makes in the
/// place of the last one's (`last = loss.detach()`) is written by replays; once something else
/// holds it, too, or it has ended, a call runs the function as it is. (That the program moves it
/// elsewhere, nobody sees: keep clones.)
///
/// A step with dropout cannot be recorded yet (StateError): what it draws would be part of the
/// recording.
///
/// What the host decides while the function runs is part of the recording: shapes, learning rates,
/// which parameters have gradients. Code that reads such a value says so with
/// `StepGraph::depends_on`. When it has changed at a later call, that call runs the function as it
/// is, and the next one records it anew. Parameters do this (what requires a gradient, what has
/// one), modules for their mode and their parts, optimizers for their options and for where their
/// state lies, GradScaler for its scale; and all of them when they end, or are assigned to: so a
/// model may be replaced. So does an Autocast around the call; and while a HashTrace looks at each
/// result, calls run the function as it is. A step
/// with a value that changes at each call, such as the learning rate of a warm-up, is never
/// replayed. What your own function reads besides, such as a number, stays as it was recorded. A
/// tensor that it reads has changed when nothing but recordings holds the memory any more; until
/// then they keep it (but not that of Communicator::allocate).
///
/// What the step leaves on the host, a replay does not, unless StepGraph::at_replay says so, as
/// Schedule::step does. So a step that leaves a gradient which it did not begin with, or the
/// reverse, is refused (StateError): it ends with zero_grad(), or begins with it. So is what else
/// the library would do on the host: to set an option of an optimizer, to add to a LossLog or
/// Metrics, to draw from a Generator, to read or write a tensor on the cpu, a collective of such
/// tensors, to call a GradientObserver that is not replayable().
///
/// All work is on the step's stream, or on one that waits for it (Stream::wait), and for which it
/// waits; else StateError. When a recording fails, gradients, optimizers and
/// DistributedDataParallel are as before on the host. What the step had made anew by then is lost:
/// to read it is a StateError.
///
/// What the function refers to must be there in every call.
///
/// On the cpu every call runs the function. Not thread-safe; distinct graphs in distinct threads
/// are.

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "lockstep/core/device.h"
#include "lockstep/core/error.h"
#include "lockstep/core/system/lifetime.h"

namespace lockstep {

/// What a step may not do while it is recorded. In DistributedDataParallel's backward it does not
/// break the world, unlike other exceptions: the steps of all ranks are refused alike.
struct NotRecordable : StateError {
  using StateError::StateError;
};

class StepGraph {
 public:
  /// `step` is run and recorded on `device` by the first calls; nothing happens yet.
  StepGraph(std::function<void()> step, Device device);
  ~StepGraph();
  StepGraph(StepGraph&&) noexcept;
  StepGraph& operator=(StepGraph&&) noexcept;

  /// Enqueues one step on the thread's current stream of the device; a call that records waits. On
  /// another stream than before it begins again: it runs the function, then records it.
  /// Returns whether it launched a recording.
  bool operator()();

  /// How many kernels the recording launches; 0 before it is recorded, and on the cpu.
  std::size_t kernels() const;
  /// How often the step has been recorded.
  int recordings() const;

  /// Whether this thread runs or records a step: then depends_on() is heard. A load.
  static bool noting() { return noting_; }
  /// Called while a step runs, or is recorded (elsewhere it does nothing): `unchanged` tells before
  /// the recording, and before each replay, whether what the step has read is as it was.
  static void depends_on(std::function<bool()> unchanged);
  /// The same for what `owner` refers to: when that has ended, it is not asked, and has changed.
  static void depends_on(Lifetime::Ref owner, std::function<bool()> unchanged) {
    depends_on([owner = std::move(owner), unchanged = std::move(unchanged)] {
      const auto living = owner.lock();
      return living && unchanged();
    });
  }
  /// Whether noting(), and this is the first call with this key in this run of the step.
  static bool first_time(const void* key);
  /// The same for what stands around the calls of all steps: `state` tells what it is for this
  /// thread now, 0 as at first. It stays for good; thread-safe.
  static void depends_on_surroundings(std::uint64_t (*state)());
  /// Called while a step is recorded: each later replay calls `change`, which does to the host what
  /// the step did, after its launch.
  static void at_replay(std::function<void()> change);
  /// Called while a step is recorded: `check` is called when its function has ended, unless an
  /// exception ends it or a check before this one has thrown. It may throw: the recording fails.
  static void at_end(std::function<void()> check);
  /// Called while a step is recorded: if the recording fails, `undo` undoes what the step has done
  /// to the host by then. The last one is called first. It must not throw.
  static void at_failure(std::function<void()> undo);
  /// Whether the calling thread is recording a step.
  static bool recording();
  /// Called by what changes or reads something on the host that the next step finds otherwise:
  /// throws StateError while a step is recorded. Elsewhere it is a load.
  static void refuse_in_recording(std::string_view call) {
    if (noting_) [[unlikely]]
      check<NotRecordable>(!recording(),
                           "[{}] in a step that is recorded is done by the host, once, and by no "
                           "replay: do it before or after the step",
                           call);
  }
  class Pause;

 private:
  struct State;
  State& state() const;
  std::unique_ptr<State> state_;
  inline static constinit thread_local bool noting_ = false;
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
