#pragma once
/// Optimizers with PyTorch's formulas. One kernel call steps all parameters of a group.
///
///   optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
///   optim::Adam optimizer({{encoder, {.lr = 1e-3}}, {head, {.lr = 1e-2}}});   // parameter groups
///
/// `step()` skips a parameter that has no gradient: its state and its step count stay as they are.
/// A parameter under DDP whose gradient is not synchronized is refused, by name: stepping it would
/// let the replicas drift apart. So is a step without any gradient if nothing was synchronized
/// since the last one. Ranks that take different steps (another learning rate, another subset)
/// learn of it in the next backward: each step leaves a fingerprint of the parameters and of the
/// optimizer's state, which the ranks compare. Divergence on purpose (local SGD) is
/// `step(optim::local)`: it takes this rank's own gradients;
/// DistributedDataParallel::average_parameters() makes the replicas equal again.

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "lockstep/autograd/gradient_reducer.h"
#include "lockstep/autograd/parameter.h"
#include "lockstep/kernels/optimizer.h"

namespace lockstep::optim {

/// Parameters that share their options.
template <class Options>
struct Group {
  std::vector<Parameter> parameters;
  Options options;
  /// A group of options that convert to these.
  template <class Other>
  operator Group<Other>() const {  // NOLINT
    return {parameters, options};
  }
};

struct Local {};
inline constexpr Local local;

/// To write an optimizer: derive from this, and define update(), state_of() and options_digest().
class Optimizer : public Stepper {
 public:
  Optimizer(const Optimizer&) = delete;  // two of them would share their state
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update of every parameter that has a gradient. Throws StateError as said above.
  void step() { take_step(false); }
  /// The same, with the gradients of this rank alone.
  void step(Local) { take_step(true); }
  /// "The next contribution overwrites", for every gradient. Touches no memory. Throws StateError
  /// if step() is still to finish what step_early() has begun.
  void zero_grad();

  /// Steps now those of `parameters` that are this optimizer's; the next step() leaves them out.
  /// What optim::Overlap calls. Throws StateError if one has been stepped so since the last step().
  void step_early(std::span<const Parameter> parameters);

 protected:
  /// Checks that no parameter stands in two groups or is undefined.
  explicit Optimizer(std::vector<Parameter> all);
  /// Throws UsageError for options that make no sense: they may have changed since the last step.
  virtual void check_options() const {}
  /// Steps every parameter that takes part.
  virtual void update() = 0;
  const std::vector<Parameter>& all() const { return all_; }
  /// True if `parameter` has a gradient, and is one of those that are to be stepped now.
  bool takes_part(const Parameter& parameter) const;
  /// A digest of the options, the same for the same options: ranks compare them.
  virtual std::uint64_t options_digest() const = 0;
  /// Where update() may add the fingerprint of what it leaves in `parameter` and its state, in the
  /// same pass. If update() does not ask, the values are read once more after it.
  kernels::Fingerprint fingerprint(const Parameter& parameter);

 private:
  void take_step(bool own);
  void update_and_fingerprint();
  std::uint64_t ask_reducers(bool own);  // how often they have synchronized
  void check_unmanaged(bool beside_managed) const;

  using Set = std::unordered_set<const void*>;  // of Parameter::id()

  std::vector<Parameter> all_;
  Set own_;
  Set now_;                                 // what step_early() is stepping
  Set early_;                               // what it has stepped since the last step()
  std::uint64_t early_options_ = 0;         // their digest
  std::uint64_t synchronizations_ = 0;      // of the parameters' reducers, as of the last step
  std::vector<GradientReducer*> reducers_;  // of the parameters, each once, as of this step
  bool local_ = false;                      // this step is on this rank's own gradients
  bool fingerprinted_ = false;              // update() has asked for a fingerprint
  // For weak references, which then know when this has ended; it keeps nothing alive.
  std::shared_ptr<Stepper> self_{this, [](Stepper*) {}};
};

/// Stochastic gradient descent; Sutskever et al. 2013 for Nesterov's momentum, in PyTorch's form.
class SGD : public Optimizer {
 public:
  struct Options {
    double lr = 1e-3;         ///< [0, inf)
    double momentum = 0;      ///< [0, inf); from 1 on, old gradients never fade
    double dampening = 0;     ///< any finite number
    double weight_decay = 0;  ///< [0, inf)
    bool nesterov = false;    ///< needs momentum > 0 and dampening 0
    bool operator==(const Options&) const = default;
  };
  /// Throws UsageError, which names the option, its range and its value, for an option out of its
  /// range. Options that are changed later (groups()) are checked by the next step.
  SGD(std::vector<Parameter> parameters, Options options);
  explicit SGD(std::vector<Group<Options>> groups);

  std::vector<Group<Options>>& groups() { return groups_; }  ///< to change lr between steps
  std::vector<StateTensor> state_of(const Parameter& parameter) const override;
  std::string options_text() const override;
  void forget(const Parameter& parameter) override;

 private:
  void check_options() const override;
  void update() override;
  std::uint64_t options_digest() const override;
  struct State {
    std::vector<Tensor> momentum;  // per parameter; undefined until the first step
    std::vector<kernels::SgdItem> items;
  };
  std::vector<Group<Options>> groups_;
  std::vector<State> states_;
};

struct AdamOptions {
  double lr = 1e-3;         ///< [0, inf)
  double beta1 = 0.9;       ///< [0, 1): how much of the gradient's running mean is kept
  double beta2 = 0.999;     ///< [0, 1): the same for the mean of its square
  double eps = 1e-8;        ///< [0, inf); with 0, an element whose gradients were all 0 becomes NaN
  double weight_decay = 0;  ///< [0, inf)
  bool operator==(const AdamOptions&) const = default;
};

/// Kingma & Ba 2015, "Adam", algorithm 1. Step counts are per parameter. Options out of their range
/// throw UsageError, as SGD's do.
class Adam : public Optimizer {
 public:
  using Options = AdamOptions;
  Adam(std::vector<Parameter> parameters, Options options);
  explicit Adam(std::vector<Group<Options>> groups) : Adam(std::move(groups), false) {}

  std::vector<Group<Options>>& groups() { return groups_; }
  std::vector<StateTensor> state_of(const Parameter& parameter) const override;
  std::string options_text() const override;

 protected:
  Adam(std::vector<Group<Options>> groups, bool decoupled);

 private:
  void check_options() const override;
  void update() override;
  std::uint64_t options_digest() const override;
  struct State {
    std::vector<Tensor> first, second;  // moments, zeros at the start
    std::vector<Tensor> steps;          // i64 (), on the value's device
    std::vector<kernels::AdamItem> items;
  };
  bool decoupled_;  // weight decay on the value itself, not through the gradient
  std::vector<Group<Options>> groups_;
  std::vector<State> states_;
};

/// The ranges are those of AdamOptions.
struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  operator AdamOptions() const { return {lr, beta1, beta2, eps, weight_decay}; }  // NOLINT
};

/// Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2.
class AdamW : public Adam {
 public:
  using Options = AdamWOptions;
  AdamW(std::vector<Parameter> parameters, AdamWOptions options)
      : Adam({{std::move(parameters), options}}, true) {}
  explicit AdamW(const std::vector<Group<AdamWOptions>>& groups)
      : Adam(std::vector<Group<AdamOptions>>(groups.begin(), groups.end()), true) {}
};

}  // namespace lockstep::optim
