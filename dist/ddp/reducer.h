#pragma once
/// Sums gradients over the ranks, in buckets, while backward runs.
///
/// The life of a gradient: the tape's loop writes it into its place in a bucket. Its last
/// contribution makes it ready. The last ready gradient of a bucket makes the bucket ready. Buckets
/// are launched in index order, the same on every rank. Whenever a later gradient becomes ready,
/// the computing thread moves the collectives on. At the end of backward the reducer waits for all
/// of them, reads what the ranks told each other (step_metadata.h; on GPUs one backward later), and
/// marks the gradients synchronized.
///
///     backward kernels   | 4.w 4.b | 2.w 2.b | 0.w 0.b |
///     bucket 0 (4., 2.)                      |--- all-reduce ---|
///     bucket 1 (0.)                                    | queued |-- all-reduce --| verdict
///
/// Unused parameters. A parameter that the loss does not reach is ready before the first kernel
/// and travels as zero, or as what its window holds. Behind the last bucket travels how many ranks
/// used each parameter. One that no rank used has no gradient then: the optimizer skips it.
///
/// The mean. A result is sum(w g) / sum(w) over all parts of one accumulation window
/// (accumulation_window.h). If the total of the weights is known when backward begins, the loss is
/// seeded with w / total, and the sum over the ranks is the mean. If not, the seed is w: the sums
/// are divided once, at the end. Several synchronized backwards before one step add up, if their
/// totals are known: all ranks hold the earlier sum, so rank 0 alone sends it again.
///
/// A rank whose loss reaches none of the parameters must call synchronize(weight). If it does not,
/// its optimizer refuses to step, by name; the rank then leaves, which the other ranks notice.
///
/// Several reducers in one backward: the first one's buckets travel while it runs, those of the
/// others at its end, in the order in which the reducers were made.
///
/// What else a synchronization needs (weights, comparisons, verdicts, statistics) are guards, each
/// with its own matter: step_guard.h.
///
/// Errors. If an exception leaves backward, the reducer breaks the communicator: else the other
/// ranks would wait for buckets that never come. An error that all ranks read from the metadata
/// does not break it, nor does the refusal of a recorded step (NotRecordable).
///
/// Thread-safety: as Communicator.

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/autograd/gradient_reducer.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/dist/ddp/buckets/bucket_transfer.h"
#include "lockstep/dist/ddp/buckets/ready_order.h"
#include "lockstep/dist/ddp/ddp_options.h"
#include "lockstep/dist/ddp/guards/accumulation_window.h"
#include "lockstep/dist/ddp/guards/nonfinite.h"
#include "lockstep/dist/ddp/guards/replica_check.h"
#include "lockstep/dist/ddp/guards/step_trace.h"
#include "lockstep/dist/ddp/step_exchange.h"

namespace lockstep::dist {

/// What a model has beside the parameters that are summed.
struct ReducerExtras {
  std::vector<Parameter> frozen = {};   ///< compared with the others
  std::vector<StepGuard*> guards = {};  ///< which outlive the reducer
};

class Reducer final : public GradientReducer {
 public:
  /// Collective: every rank passes the same parameters in the same order, and the same options.
  /// Takes over the memory of their gradients; the destructor gives it back. Once `communicator`
  /// has ended, a backward and a step throw StateError.
  Reducer(const std::vector<Parameter>& parameters, Communicator& communicator,
          const DdpOptions& options = {}, const ReducerExtras& extras = {});
  ~Reducer() override;

  // What the tape tells it.
  void backward_begins(const Contribution& contribution) override;
  void gradient_ready(const Parameter& parameter) override;
  void backward_ends() override;
  void backward_failed() noexcept override;

  // What the tape and optimizers ask.
  int ranks() const override { return ranks_; }
  std::int64_t order() const override { return number_; }
  bool in_window(bool sync) override { return *paused_ > 0 || !sync || window_.open(); }
  double window_weight() const override { return window_.weight(); }
  void step_begins(const Parameter& parameter, bool local) override;
  kernels::Fingerprint fingerprint(const Parameter& parameter, bool part) override {
    return replicas_.step_on(index_.at(parameter.id()), part);
  }
  void stepped(const std::weak_ptr<Stepper>& stepper, std::uint64_t options, bool local) override;
  void requires_grad_changes(const Parameter& parameter, bool yes) override;
  bool gave_up() const override { return last_step().verdict == StepVerdict::skip; }
  std::uint64_t synchronizations() const override { return synchronizations_; }

  /// Collective, in the place of a backward: takes part in a synchronization with what this rank's
  /// window holds, or with nothing. `weight` is that of data whose loss reaches no parameter: it
  /// counts in the mean, with a gradient of zero. Throws UsageError for a negative weight.
  void synchronize(double weight = 0);

  // --- second reading: reducer_*.cpp ---

  /// Collective. Every parameter := its mean over the ranks, and so what optimizers keep of it.
  /// Throws StateError if a gradient is local. What gradients held is lost: their memory is used.
  void average_parameters();
  void check_replicas();  ///< DistributedDataParallel::check_replicas
  /// Why no backward can be part of a recorded step (core/gpu/graph.h); empty if it can.
  std::string_view why_not_recorded() const;
  /// Reads the metadata of a backward whose verdict was deferred, as the next backward does. Throws
  /// what that one would have thrown.
  void settle();
  void zero_grad() noexcept;                                      ///< of every parameter
  const std::shared_ptr<int>& paused() const { return paused_; }  ///< if not 0: accumulates only
  void set_joined(bool joined) { exchange_.mine.joined = joined ? 1 : 0; }  ///< no more data here

  const StepReport& last_step() const { return exchange_.report(); }
  const StepStatistics& statistics() const { return exchange_.statistics(); }
  const GradientBuckets& buckets() const { return buckets_; }

 private:
  using Bucket = GradientBuckets::Bucket;
  const std::vector<Parameter>& parameters() const { return buckets_.parameters(); }
  bool prepare_slot(std::size_t i);
  void launch_ready();
  void launch(Bucket& bucket);
  void write_metadata();
  void receive_sums();
  StepVerdict verdict_of(StepOutcome& outcome);
  void mark_gradients();
  void end_step(StepVerdict verdict, int source);
  [[noreturn]] void stop(const StepOutcome& outcome);

  // reducer_setup.cpp, reducer_checks.cpp, reducer_deferred.cpp
  void observe_all();
  void rebuild_buckets(int source);
  void check_world_lives(std::string_view operation) const;
  void check_can_add(const Contribution& contribution) const;
  bool can_defer() const;
  void commit_unread();
  void check_before_replay();

  Communicator& communicator_;
  CommunicatorRef world_{communicator_};
  int ranks_ = communicator_.size();
  std::int64_t number_;  // of this reducer, the same on all ranks
  DdpOptions options_;
  GradientBuckets buckets_;
  std::unique_ptr<BucketTransfer> transfer_;
  Observation hook_taken_;
  std::vector<Observation> observations_;               // of all parameters; gone before buckets
  std::unordered_map<const void*, std::size_t> index_;  // Parameter::id() -> index

  AccumulationWindow window_;
  ReplicaCheck replicas_;
  NonFiniteCheck nonfinite_;
  ReadyOrder ready_order_;
  StepTrace trace_;
  StepExchange exchange_;
  std::vector<StepGuard*> guards_;  // these, and what the model adds

  std::shared_ptr<int> paused_ = std::make_shared<int>(0);
  bool drifted_ = false;  // by steps on local gradients, since the parameters were averaged
  std::uint64_t synchronizations_ = 0;

  // Of the backward that is running.
  bool synchronizing_ = false;
  bool eager_ = true;         // it may launch buckets before it ends
  bool recording_ = false;    // it is part of a recorded step: nothing that the host reads travels
  std::size_t launched_ = 0;  // buckets [0, launched_) are on their way

  bool deferred_ = false;  // the metadata of the last backward has not been read
  Birth birth_;            // for the destructor
};

}  // namespace lockstep::dist
