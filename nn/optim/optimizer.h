#pragma once
/// Optimizers with PyTorch's formulas. One kernel call steps all parameters of a group.
///
///   optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
///   optim::Adam optimizer({{encoder, {.lr = 1e-4}}, {head, {}}}, {.weight_decay = 0.1});
///   optimizer.add_param_group(adapter, {.lr = 1e-2});                         // one more, later
///
/// A group has the options that the optimizer was made with, except for those that are given with
/// the group: here all decay by 0.1.
///
/// The options, their defaults and their ranges are those of kernels/optimizer.h. One out of its
/// range (NaN is in none) throws UsageError, which names the option, its range and its value: at
/// once where it is given to a constructor, add_param_group or set_lr, and in the next step where
/// it is changed through groups() or group_views(). On all ranks change them alike, between the
/// same two steps.
///
/// `step()` skips a parameter that has no gradient: its state and its step count stay as they are.
/// A parameter under DDP whose gradient is not synchronized is refused, by name: stepping it would
/// let the replicas drift apart. So is a step without any gradient if nothing was synchronized
/// since the last one, and, while a World of several ranks lives, a step on parameters that are
/// under no DDP and were not kept local. Ranks that take different steps (another learning rate,
/// another subset) learn of it in the next backward: each step leaves a fingerprint of the
/// parameters and of the optimizer's state, which the ranks compare. Divergence on purpose (local
/// SGD, a model for each rank) is `step(optim::local)`: it takes this rank's own gradients;
/// DistributedDataParallel::average_parameters() makes the replicas equal again.

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/autograd/gradient_reducer.h"
#include "lockstep/autograd/parameter.h"
#include "lockstep/core/trace/results.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/nn/state_dict.h"

namespace lockstep::dist {
class DistributedDataParallel;
}

namespace lockstep::optim {

class Sharding;

/// Parameters that share their options; or, to make a group, parameters and what is Given of its
/// options.
template <class Options>
struct Group {
  std::vector<Parameter> parameters;
  Options options;
};

/// What the groups of all optimizers have, to be read and changed while the optimizer lives and no
/// group is added.
struct GroupView {
  const std::vector<Parameter>& parameters;
  double& lr;
  double& weight_decay;
};

struct Local {};
inline constexpr Local local;

/// Throws StateError where no state must be taken: for a parameter with a gradient on which an
/// optimizer is still to step (no state has it), or one that holds an average for a while
/// (Ema::Applied). The error names it.
void check_between_steps(std::string_view operation, const std::vector<Parameter>& parameters);

/// To write an optimizer: derive from this, and define update(), state_of() and options_digest().
class Optimizer : public Stepper {
 public:
  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;  // two of them would share their state
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update of every parameter that has a gradient. Throws StateError as said above.
  void step() { take_step(false); }
  /// The same, with the gradients of this rank alone.
  void step(Local) { take_step(true); }
  /// "The next contribution overwrites", for every gradient. Touches no memory.
  void zero_grad();

  /// No step waits for what the gradients hold: it is over, or was left out (GradScaler).
  void gradients_are_used();

  /// What a checkpoint needs for the next step to be the one that would have come: what is kept of
  /// each parameter ("0.weight.momentum"), and of the optimizers below also all options ("group
  /// 0.lr": f64) and the group of each parameter ("0.weight.group": i64). The tensors of the first
  /// kind share the optimizer's memory. Throws StateError for a parameter that has no name,
  /// or the name of another one, and as check_between_steps.
  virtual nn::StateDict state_dict() const;
  /// Copies them in, between two steps; under DDP on all ranks. Throws StateError for a missing or
  /// an unknown name, ShapeError or DTypeError for a value that does not fit, UsageError for an
  /// option out of its range; then nothing has changed. (An SGD that has taken no step yet keeps no
  /// momentum; its state has none.)
  virtual void load_state_dict(const nn::StateDict& state);

  /// Every group, in order: a schedule, for example, needs to know no more of an optimizer. Empty
  /// for an optimizer that does not define it.
  virtual std::vector<GroupView> group_views() { return {}; }
  /// The learning rate of all groups. Throws StateError if they differ, or if there is no group.
  double lr() const;
  /// Gives all groups this learning rate. Throws UsageError unless it is in [0, inf), StateError if
  /// there is no group, and as groups().
  void set_lr(double lr);
  /// All parameters, group by group.
  const std::vector<Parameter>& all() const { return all_; }

  /// Collective, between two steps: from now on each rank keeps the state of its part of the
  /// parameters alone, and step() is collective (sharding.h: ZeRO, stage 1). The bits of the result
  /// stay the same. state_dict() and load_state_dict() become collective, too, and have the whole
  /// tensors: a checkpoint can be loaded by any number of ranks, sharded or not. The ddp must
  /// outlive the last step, and so must the World: later steps throw StateError. Throws StateError
  /// for a second call, a parameter that is not under the ddp, or one whose elements are held
  /// elsewhere too; UsageError if this optimizer cannot do it. It does not go together with
  /// step(optim::local) and add_param_group.
  void shard(dist::DistributedDataParallel& ddp);
  bool sharded() const { return sharding_ != nullptr; }
  /// Expires when this optimizer ends: for what refers to it, and may outlive it.
  std::weak_ptr<const void> life() const { return self_; }
  /// What this rank keeps of all parameters.
  virtual std::size_t state_bytes() const;

 protected:
  /// Throws UsageError if there is no parameter, or one stands in two groups or is undefined.
  explicit Optimizer(const std::vector<Parameter>& all);
  /// The same for parameters that join later; StateError if this is sharded. Changes nothing if it
  /// throws.
  void include(std::string_view operation, const std::vector<Parameter>& parameters);
  /// Throws UsageError for options that make no sense: they may have changed since the last step.
  virtual void check_options() const {}
  /// Steps every parameter that takes part.
  virtual void update() = 0;
  /// Its index in all(); all().size() if it is none of this optimizer's.
  std::size_t index_of(const Parameter& parameter) const {
    const auto found = own_.find(parameter.id());
    return found == own_.end() ? all_.size() : found->second;
  }
  /// Whether `parameter` has a gradient, and so is to be stepped now.
  static bool takes_part(const Parameter& parameter);
  /// A digest of the options, the same for the same options: ranks compare them.
  virtual std::uint64_t options_digest() const = 0;
  /// Where the values lie, and what is kept of them: a recorded step holds while they lie there,
  /// and the options are the same. Here it is as state_of() says.
  virtual std::vector<const void*> places() const;
  /// Where update() may add the fingerprint of what it leaves in `parameter` and its state, in the
  /// same pass. If update() does not ask, the values are read once more after it.
  kernels::Fingerprint fingerprint(const Parameter& parameter);

  /// How shard() cuts the state: first no value is held, then own_part() is all that is kept.
  virtual void release_values();
  virtual void take_values() {}
  const Sharding* sharding() const { return sharding_.get(); }
  /// The elements that this rank steps, wherever they lie now; `before`: as of the step before.
  /// Throws StateError if they are on another device, where nothing is kept of them, or, of a
  /// sharded optimizer, no longer in the memory that the ranks share.
  Tensor value_now(const Parameter& parameter, const Tensor& before) const;
  /// Of a tensor of the parameter's shape: what this rank steps. All of it, unless sharded.
  Tensor own_part(const Parameter& parameter, const Tensor& of) const;
  /// Of what is kept of the parameter: what all ranks keep. Collective if sharded.
  Tensor whole(const Parameter& parameter, const Tensor& part) const;

 private:
  void take_step(bool own);
  void show(trace::Place place) const;
  void update_and_fingerprint();
  void fingerprint_a_gradient();
  void ask_reducers(bool own);
  std::uint64_t synchronizations() const;  // of the parameters' reducers, together
  void check_unmanaged(bool beside_managed) const;

  std::vector<Parameter> all_;
  std::vector<Observation> arrivals_;
  std::unordered_map<const void*, std::size_t> own_;  // Parameter::id() -> index in all_
  std::uint64_t synchronizations_ = 0;                // as of the last step
  std::vector<GradientReducer*> reducers_;  // of the parameters, each once, as of this step
  bool local_ = false;                      // this step is on this rank's own gradients
  bool fingerprinted_ = false;              // update() has asked for a fingerprint
  std::unique_ptr<Sharding> sharding_;      // null: each rank steps all
  std::size_t next_compared_ = 0;           // whose gradient is compared, if sharded
  // For weak references, which then know when this has ended; it keeps nothing alive.
  std::shared_ptr<Stepper> self_{this, [](Stepper*) {}};
};

/// The numbers low <= value < high.
struct Range {
  double low, high;
};
inline constexpr double infinity = std::numeric_limits<double>::infinity();
inline constexpr Range not_negative{0, infinity}, share{0, 1}, any_number{-infinity, infinity};

/// Throws UsageError unless `value` is a number in `range`.
void check_range(std::string_view where, std::string_view name, double value, Range range);

/// What the optimizers below have in common: groups of parameters, each with its options, and an
/// item of the kernel for each parameter, with what is kept of it. The Rule says which kernel that
/// is, and lists all options, for checks, digest, text and state_dict():
/// visit(name, a number, its range), or visit(name, a flag).
template <class Rule>
class Grouped : public Optimizer {
 public:
  using Options = typename Rule::Options;
  using Given = typename Rule::Given;  ///< for a group: an option that is not given is `options`'
  /// Of parameters that share their options, or of groups.
  Grouped(std::vector<Parameter> parameters, Options options)
      : Grouped(std::vector<Group<Given>>{{std::move(parameters), {}}}, options) {}
  explicit Grouped(std::vector<Group<Given>> groups, Options options = {});

  /// To change options between steps. Not in a step that is recorded (core/gpu/graph.h), whose
  /// replays would not change them: StateError, of group_views() as well.
  std::vector<Group<Options>>& groups() {
    StepGraph::refuse_in_recording("groups");
    return groups_;
  }
  std::vector<GroupView> group_views() override;
  /// One more group; its parameters begin as before their first step. What is not given of its
  /// options is what the optimizer was made with, whatever was set since, as in PyTorch. Under DDP
  /// on all ranks, between the same two steps. Throws UsageError for a parameter that is in a group
  /// already; then nothing has changed.
  void add_param_group(std::vector<Parameter> parameters, Given given = {});

  std::vector<StateTensor> state_of(const Parameter& parameter) const override;
  std::size_t state_bytes() const override;
  std::string options_text() const override;
  void forget(const Parameter& parameter) override;
  nn::StateDict state_dict() const override;
  void load_state_dict(const nn::StateDict& state) override;

 private:
  using Item = typename Rule::Item;
  void check_members() const;
  void check_options() const override;
  void update() override;
  std::vector<const void*> places() const override;
  std::uint64_t options_digest() const override;
  void release_values() override;
  void take_values() override;
  struct Kept {
    std::vector<Parameter> parameters;
    std::vector<Item> states{};  // per parameter
    std::vector<Item> items{};   // of a step
  };
  static Options completed(const Given& given, Options options);
  Kept make_kept(const Group<Options>& group) const;
  template <class Self, class Visit>
  static void visit_state(Self& self, const Parameter& parameter, const Visit& visit);

  Options options_;  // that it was made with
  std::vector<Group<Options>> groups_;
  std::vector<Kept> kept_;  // per group
};

using SgdOptions = kernels::SgdConfig;
struct SgdGiven {
  std::optional<double> lr{}, momentum{}, dampening{}, weight_decay{};
  std::optional<bool> nesterov{}, maximize{};
};
struct SgdRule {
  using Given = SgdGiven;
  using Options = SgdOptions;
  using Item = kernels::SgdItem;
  static constexpr std::string_view name = "SGD";
  static constexpr auto step = kernels::sgd_step;
  static void visit(auto& options, const auto& visit);
  static void check_together(const SgdOptions& options);
};
extern template class Grouped<SgdRule>;

/// Stochastic gradient descent; Sutskever et al. 2013 for Nesterov's momentum, in PyTorch's form.
using SGD = Grouped<SgdRule>;

using AdamOptions = kernels::AdamConfig;
struct AdamGiven {
  std::optional<double> lr{}, beta1{}, beta2{}, eps{}, weight_decay{};
  std::optional<bool> amsgrad{}, maximize{}, decoupled{};
};
struct AdamRule {
  using Given = AdamGiven;
  using Options = AdamOptions;
  using Item = kernels::AdamItem;
  static constexpr std::string_view name = "Adam";
  static constexpr auto step = kernels::adam_step;
  static void visit(auto& options, const auto& visit);
};
extern template class Grouped<AdamRule>;

/// Kingma & Ba 2015, "Adam", algorithm 1. Step counts are per parameter.
using Adam = Grouped<AdamRule>;

/// AdamOptions, `decoupled` and with another default.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
  bool maximize = false;
  bool operator==(const AdamWOptions&) const = default;
  operator AdamOptions() const {  // NOLINT
    return {lr, beta1, beta2, eps, weight_decay, amsgrad, maximize, true};
  }
};
struct AdamWGiven {
  std::optional<double> lr{}, beta1{}, beta2{}, eps{}, weight_decay{};
  std::optional<bool> amsgrad{}, maximize{};
};
struct AdamWRule : AdamRule {
  using Given = AdamWGiven;
  using Options = AdamWOptions;
  static constexpr std::string_view name = "AdamW";
};
extern template class Grouped<AdamWRule>;

/// Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
using AdamW = Grouped<AdamWRule>;

using RmspropOptions = kernels::RmspropConfig;
struct RmspropGiven {
  std::optional<double> lr{}, alpha{}, eps{}, weight_decay{}, momentum{};
  std::optional<bool> centered{}, maximize{};
};
struct RmspropRule {
  using Given = RmspropGiven;
  using Options = RmspropOptions;
  using Item = kernels::RmspropItem;
  static constexpr std::string_view name = "RMSprop";
  static constexpr auto step = kernels::rmsprop_step;
  static void visit(auto& options, const auto& visit);
};
extern template class Grouped<RmspropRule>;

/// Hinton 2012, lecture 6e of "Neural Networks for Machine Learning"; `centered`: Graves 2013.
using RMSprop = Grouped<RmspropRule>;

using LionOptions = kernels::LionConfig;
struct LionGiven {
  std::optional<double> lr{}, beta1{}, beta2{}, weight_decay{};
  std::optional<bool> maximize{};
};
struct LionRule {
  using Given = LionGiven;
  using Options = LionOptions;
  using Item = kernels::LionItem;
  static constexpr std::string_view name = "Lion";
  static constexpr auto step = kernels::lion_step;
  static void visit(auto& options, const auto& visit);
};
extern template class Grouped<LionRule>;

/// Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2: the sign of a
/// momentum. It keeps half of what Adam keeps. Rounding may turn the sign of a number near 0; the
/// replicas turn it alike.
using Lion = Grouped<LionRule>;

}  // namespace lockstep::optim
