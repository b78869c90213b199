#pragma once
/// Proves at every step that the replicas are equal: second reading.
///
/// Every step of an optimizer adds the fingerprint of what it leaves (kernels/fingerprint.h), in
/// its own pass over memory: of each parameter and of what the optimizer keeps of it. The sum of
/// all steps so far travels with the next step metadata, and all ranks compare it:
///
///     backward 1 | step 1: sum += f(values, state) | backward 2: metadata {sum} | step 2 ...
///                                                               `-- ranks compare
///
/// Nothing is taken from the sum: once ranks have stepped differently, their sums stay different.
/// So a change that one rank makes to what is stepped on (it writes to a parameter, loses its
/// momentum, clips by another norm, zeroes a gradient) is found by the second synchronizing
/// backward after it, with DdpOptions::deferred one backward later. A parameter that no optimizer
/// has stepped on is read instead: one of them per step, in turn.
///
/// Not compared: what may differ between ranks (Parameter::keep_local, the memory of communication
/// hooks); what an optimizer keeps of a parameter that it does not step on; and what lies between
/// step(optim::local) and average_parameters(), unless it is the end. Recorded steps
/// (core/gpu/graph.h) add to the sum, too; it is compared before every 64th replay, and in the next
/// backward that is not recorded.
///
/// The same pass sees a parameter that has become infinite or NaN (NonFinite::report), also in a
/// world of 1.
///
/// Cost: one multiplication and some additions per element that is in a register anyway, and 8
/// bytes of metadata. A world of 1 computes nothing that is not asked for by `report`.
///
/// Thread-safety: as Communicator.

#include <unistd.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/autograd/gradient_reducer.h"
#include "lockstep/autograd/parameter.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/ddp/agreed_error.h"
#include "lockstep/dist/ddp/guards/step_guard.h"

namespace lockstep::dist {

class ReplicaCheck final : public StepGuard {
 public:
  /// `compares` the replicas of a world of more than 1, and `watches` for parameters that are
  /// infinite or NaN. `communicator` must outlive this.
  ReplicaCheck(std::vector<Parameter> parameters, Communicator& communicator, bool compares,
               bool watches);
  /// Leaves the fingerprint of all parameters, of what optimizers keep and of all steps for a last
  /// comparison (rendezvous/events/left_replicas.h), unless an error has told that something is
  /// wrong, or this is a child that was forked. Does not wait for others.
  ~ReplicaCheck() override;
  ReplicaCheck(const ReplicaCheck&) = delete;
  ReplicaCheck& operator=(const ReplicaCheck&) = delete;

  /// An error has left a backward: no last comparison is needed.
  void error_told() noexcept { difference_known_ = true; }

  /// Where a step on parameter i adds its fingerprint; nowhere if no comparison needs it. A step on
  /// a `part` of it adds nothing: its value is read, like the value of a parameter without a step.
  kernels::Fingerprint step_on(std::size_t i, bool part = false);
  /// An optimizer has stepped; what it keeps is compared, too. It may end at any time.
  void note(const std::weak_ptr<Stepper>& stepper);

  /// Reads the next parameter that was not stepped on.
  void begins(bool recorded) override;
  /// The sum as of begins(); 0 if nothing is compared. Waits for what a GPU was given until then,
  /// not for later work.
  void write(StepMetadata& metadata) override { metadata.replica_fingerprint = sum(); }
  void ended(StepVerdict verdict, int) override {
    if (verdict == StepVerdict::stop) error_told();
  }
  /// If it watches: whether one of the steps before the last write() has left a parameter infinite
  /// or NaN.
  bool saw_nonfinite() const { return watches_ && nonfinite_ > 0; }
  /// Before each replay of a recorded step. Collective at every 64th, which waits for the GPU: true
  /// if the ranks' sums differ.
  bool differ_before_replay();
  /// If it watches: whether a replay has left a parameter infinite or NaN. Waits for the GPU, and
  /// not for others.
  bool saw_nonfinite_in_last_replays();

  /// Collective: compares all parameters and all state now, bit by bit, and says which tensor is
  /// the first that differs, at which index, on which ranks, and which others do. Empty if none
  /// does.
  std::string find_difference();
  /// The same, where all ranks have read that their sums differ.
  Problem explain_difference();
  /// Collective. Throws StateError on all ranks if something differs now.
  void check(std::string_view operation);
  /// Collective: where the options of the optimizers that have stepped differ, and on which ranks;
  /// empty if they are equal now.
  std::string find_options_difference();
  const Blame& blame() const { return blame_; }  ///< of that difference: Error::blame
  /// Collective: what optimizers keep := its mean over the ranks, as average_parameters() does with
  /// the parameters. (Yu, Jin, Yang: "On the linear speedup analysis of communication efficient
  /// momentum SGD", ICML 2019, average both.) Counts of steps become rank 0's. A momentum that some
  /// ranks lack, because their steps left its parameter out, is forgotten by all: it begins anew.
  void average_state();

 private:
  /// Tensors of one device have one sum.
  struct Sum {
    Device device;
    Tensor value;  // i64, (2,): see Fingerprint
    Tensor on_host = Tensor::zeros({2}, DType::i64);
    std::optional<Event> ready{};
  };
  struct Compared {
    std::string name;
    Tensor value;
    std::size_t parameter;
    bool state;  // of an optimizer, not the parameter itself
  };
  std::uint64_t sum();
  std::vector<Compared> tensors() const;
  void forget_what_some_lack();
  Tensor& sum_on(Device device);
  void record_events();
  void leave(std::uint64_t fingerprint) noexcept {
    leave_replica(thread_, model_, fingerprint, ranks_);
  }

  std::vector<Parameter> parameters_;
  std::vector<std::string> names_;  // at construction, when the ranks compared them
  Communicator& communicator_;
  CommunicatorRef world_{communicator_};
  ThreadRank thread_ = communicator_.membership().thread;
  int ranks_ = communicator_.size();
  Birth birth_;
  std::uint64_t model_ = 0;  // a random number that all ranks share
  std::vector<Sum> sums_;
  bool compares_, watches_;
  std::int64_t nonfinite_ = 0;   // in the last sum
  std::vector<Tensor*> sum_of_;  // by parameter; empty: not needed
  std::vector<bool> stepped_;    // by parameter, since the last begins()
  Blame blame_;
  bool difference_known_ = false;  // all ranks know that replicas differ
  std::size_t next_ = 0;           // to be read, if it is not stepped on
  std::uint64_t replays_ = 0;
  std::vector<std::weak_ptr<Stepper>> steppers_;
};

}  // namespace lockstep::dist
