#pragma once
/// Reduces gradients in buckets while backward runs.
///
/// The life of a gradient: the tape's loop writes it into its place in a bucket; the last
/// contribution makes it ready; the last ready gradient of a bucket makes the bucket ready; buckets
/// are launched in index order, the same on every rank; the collective moves on at every later
/// ready point; at the end of backward the reducer waits for all of them and marks the gradients
/// synchronized.
///
///     backward kernels   | 4.w 4.b | 2.w 2.b | 0.w 0.b |
///     bucket 0 (4., 2.)                      |--- all-reduce ---|
///     bucket 1 (0.)                                    |--- all-reduce ---| verdict
///
/// READINESS. A parameter that the loss does not reach is ready before the first kernel and travels
/// as zero; with it travels how many ranks used each parameter since zero_grad. One that no rank
/// used has no gradient afterwards, and the optimizer skips it. No flag, no graph search.
///
/// WINDOWS. A backward that does not synchronize (BackwardOptions::sync, or NoSync) opens a window,
/// and the next one that does closes it. All backwards of a window, on all ranks, are parts of one
/// batch: the result is the mean over them by their weights,
///
///     sum over ranks and parts of w g  /  sum over ranks and parts of w,
///
/// for which the ranks' contributions are summed unscaled, the weights with the step metadata
/// (dist/ddp/step_metadata.h), and the sums divided once, at the end. Where the total is known when backward
/// begins (the loader knows it), the loss is seeded with w / total instead, and nothing is divided.
///
/// Several backwards that each synchronize add up, as far as their totals are known: what is
/// already synchronized is carried by rank 0 alone, so that it is summed once. A window, or a total
/// to be summed, on top of that is a StateError.
///
/// A rank whose loss reaches none of the parameters must say so (synchronize(weight)): the others
/// wait for it. If it does not, its optimizer refuses to step, by name, and the others learn of it.
///
/// A micro-batch within a window whose loss reaches no parameter adds nothing but its weight, which
/// goes to synchronize(weight) at the end of the window.
///
/// A backward that reaches several reducers: the first one's buckets travel while it runs, those of
/// the others at its end, in the order in which the reducers were made; so their order on the link
/// does not depend on what is ready when.
///
/// HOOKS. With ReducerOptions::hook a bucket's gradients are not all-reduced but handed to the hook
/// (dist/ddp/communication_hook.h); the step metadata then is an all-reduce of its own.
///
/// A backward that is left by an exception breaks the communicator: the other ranks count on the
/// buckets that will not come. An error that all ranks find together (`stop`) does not.
///
/// Ready order: buckets are laid out in the reverse of registration at first, and once more after
/// the first step, in the order in which gradients became ready on a rank that had data, if that
/// makes other buckets. From then on the layout stays; layout() is what a checkpoint stores.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/ddp/communication_hook.h"
#include "lockstep/dist/ddp/gradient_buckets.h"
#include "lockstep/dist/ddp/step_metadata.h"

namespace lockstep::dist {

enum class RebuildBuckets : std::uint8_t {
  never,
  ready_order,  ///< the same caps, in the order of the first backward
  measured,     ///< cuts for the earliest predicted finish, from the ready times of the first
                ///< backward and the measured link. Not reproducible from run to run
};

struct ReducerOptions {
  BucketCaps caps;
  RebuildBuckets rebuild_buckets = RebuildBuckets::ready_order;
  std::optional<BucketLayout> layout = {};  ///< of a checkpoint: then it is never changed
  NonFinite nonfinite = NonFinite::ignore;
  std::shared_ptr<CommunicationHook> hook = {};  ///< null: buckets are summed where they lie
  /// On a GPU, where the verdict can only be to commit: reads the ranks' messages when the next
  /// backward begins, and lets the host run ahead until then.
  bool deferred = false;
  /// Called on every rank after each synchronization, with the first rank that had data.
  std::function<void(StepVerdict verdict, int source)> after_sync = {};
};

/// What the last synchronization came to, the same on every rank.
struct StepReport {
  StepVerdict verdict = StepVerdict::commit;
  double weight = 0;  ///< of all ranks' data
  bool all_joined = false;
  /// By rank. Computing: since the last synchronization, waiting not included. Waiting: for other
  /// ranks, in the step before this one.
  std::vector<double> compute_seconds, wait_seconds;
};

/// Sums over all synchronizations.
struct StepStatistics {
  std::int64_t steps = 0, skipped = 0;
  std::vector<double> compute_seconds, wait_seconds;  ///< by rank
  std::vector<std::int64_t>
      slowest;  ///< by rank: in how many steps it computed longest, so that the
                ///< others waited for it
};
/// A line per rank: milliseconds per step that it computes, that it waits for others, and how often
/// they waited for it.
std::string describe(const StepStatistics& statistics);

/// Steps on a bucket's gradients while later buckets travel: see Reducer::overlap.
class EarlyStepper {
 public:
  virtual ~EarlyStepper() = default;
  /// The gradients of these parameters are final.
  virtual void step_now(std::span<const Parameter> parameters) = 0;
};

class Reducer : public GradientObserver {
 public:
  /// Collective. Every rank passes the same parameters in the same order, and the same options.
  /// Takes over their gradients' memory and gives it back in the destructor. `communicator` must
  /// outlive the reducer.
  Reducer(const std::vector<Parameter>& parameters, Communicator& communicator,
          ReducerOptions options = {});

  void backward_begins(const Contribution& contribution) override;
  void gradient_ready(const Parameter& parameter) override;
  void backward_ends() override;
  void backward_failed() noexcept override;
  int summed_ranks() const override { return communicator_.size(); }
  bool in_window(bool sync) override { return paused_ > 0 || !sync || window_open(); }
  void step_begins(const Parameter& parameter, bool local) override;
  bool steps_early() const override { return !steppers_.empty(); }
  std::int64_t order() const override { return number_; }
  std::uint64_t synchronizations() const override { return synchronizations_; }
  void stepped(std::uint64_t options) override { steps_digest_ = steps_digest_ * 31 + options; }

  /// Collective, as a backward is: takes part in a synchronization with what this rank's window
  /// holds, or with nothing. `weight` is that of data whose loss reaches no parameter: it counts in
  /// the mean, with a gradient of zero.
  void synchronize(double weight = 0);
  /// Collective. Every parameter := its mean over the ranks. Throws StateError if a gradient is
  /// local: its memory is needed on the way. What the gradients held is lost.
  void average_parameters();

  /// From now on, when a bucket has been summed at the end of a backward, `stepper` is told those
  /// of its parameters that this rank has used, if their sums are final: if the total weight was
  /// known when backward began. Not earlier: until its last kernel, backward may read parameters.
  /// If the agreement then finds that the sums are to be scaled (a rank without data, one that has
  /// joined), backward throws StateError on every rank. Every rank does the same. Throws UsageError
  /// with NonFinite::skip or stop: a step that has begun cannot be given up.
  void overlap(EarlyStepper& stepper);
  void end_overlap(EarlyStepper& stepper) noexcept { std::erase(steppers_, &stepper); }

  /// Reads the messages of a backward whose verdict was deferred (ReducerOptions::deferred), as the
  /// next backward does. Throws what that one would have thrown.
  void settle();

  /// "The next contribution overwrites", for every gradient.
  void zero_grad() noexcept { discard(); }
  /// While paused, backwards only accumulate. Calls nest.
  void pause() { ++paused_; }
  void resume() { --paused_; }
  /// This rank has no more data: it says so with every message.
  void set_joined(bool joined) { joined_ = joined; }

  const StepReport& last_step() const { return report_; }
  const StepStatistics& statistics() const { return statistics_; }
  const BucketPlan& plan() const { return buckets_->plan(); }
  const BucketLayout& layout() const { return buckets_->layout(); }
  std::string describe_plan() const;   ///< a line per bucket
  std::int64_t parameters() const;     ///< elements of all parameters
  std::size_t bytes() const;           ///< of all buckets
  std::size_t largest_bucket() const;  ///< bytes

 private:
  struct Entry {
    Observation observation;
    bool used = false;      // in this window, by a backward that counts
    bool averaged = false;  // its local gradient has been divided by the window's weight
  };
  struct Window {
    double weight = 0;
    Contribution contribution{0, 1, Contribution::Divisor::none, true};  // of its first part
  };
  struct Times {
    Seconds now{0}, waited{0};
  };

  // reducer.cpp: one backward
  bool window_open() const;
  void enter_window(const Contribution& contribution);
  void check_in_window(std::size_t parameter) const;
  void refuse_synchronized() const;
  bool begin(std::size_t parameter);
  void launch_ready();
  void launch(GradientBuckets::Bucket& bucket, bool last);
  void receive_sums();
  void look_for_nonfinite(const GradientBuckets::Bucket& bucket);
  void write_metadata();
  StepOutcome read_metadata();
  void commit(const StepOutcome& agreement);
  void discard() noexcept;
  [[noreturn]] void stop(const StepOutcome& agreement);
  void overflowed();
  void meet_before_stop();
  Times times() const { return {communicator_.now(), communicator_.waited()}; }
  std::size_t index_of(const Parameter& parameter) const { return index_.at(parameter.id()); }

  // reducer_hooks.cpp: hooks, and steps during the synchronization
  void prepare_hook();
  BucketView view(const GradientBuckets::Bucket& bucket) const;
  void launch_hook(GradientBuckets::Bucket& bucket, bool last);
  void step_early(const GradientBuckets::Bucket& bucket);
  void check_final(const StepOutcome& agreement) const;

  // reducer_recording.cpp: backwards within a StepGraph
  void check_recordable(const Contribution& contribution) const;

  // reducer_deferred.cpp: sums are taken before the messages are read
  bool can_defer() const;
  void defer();
  void take_sums();

  // rebuild_buckets.cpp: another layout
  void observe_all();
  void rebuild_buckets(int source);
  LinkModel measure_link();

  Communicator& communicator_;
  std::int64_t number_;  // of this reducer, the same on all ranks
  ReducerOptions options_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::unordered_map<const void*, std::size_t> index_;  // Parameter::id() -> index
  std::vector<Entry> entries_;                          // by parameter; gone before the buckets
  std::vector<std::vector<Parameter>> members_;         // by bucket, for the hook
  std::vector<EarlyStepper*> steppers_;
  Window window_;
  int paused_ = 0;
  bool joined_ = false;

  bool syncing_ = false;    // the backward that is running does
  bool recording_ = false;  // it is part of a recorded step
  bool deferred_ = false;   // the messages of the last backward have not been read
  std::optional<Stream> side_stream_;
  std::size_t launched_ = 0;  // buckets [0, launched_) are on their way
  bool already_reduced_ = false;
  int bad_parameter_ = -1;
  std::int64_t bad_element_ = -1;
  bool eager_ = true;  // it launches buckets before it ends

  bool planned_ = false;          // for good
  std::vector<int> ready_;        // until then: the order of this backward,
  std::vector<double> ready_at_;  // and when, in seconds after its start, by parameter
  Times began_;                   // the backward that is running

  Times step_start_;  // the end of the last synchronization
  double last_wait_ = 0;
  std::uint64_t plan_digest_ = 0;
  std::uint64_t steps_digest_ = 0;
  std::uint64_t synchronizations_ = 0;
  std::vector<StepMetadata> messages_;  // by rank
  StepReport report_;
  StepStatistics statistics_;
};

}  // namespace lockstep::dist
