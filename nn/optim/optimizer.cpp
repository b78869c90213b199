#include <algorithm>
#include <set>

#include "lockstep/autograd/gradient_reducer.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/core/trace/results.h"
#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/nn/optim/groups.h"
#include "lockstep/nn/optim/sharding.h"

namespace lockstep::optim {

namespace {

/// Notes that a gradient has got something on which no optimizer has stepped yet.
class Arrivals final : public GradientObserver {
  void gradient_ready(const Parameter& parameter) override { parameter.set_unstepped(true); }
  bool replayable() const override { return true; }  // Parameter notes what it has changed
} arrivals;                                          // it has no state: the same for all optimizers

/// For the other backwards of its window.
bool waits(const Parameter& parameter) {
  return parameter.managed() && parameter.gradient_state() == GradientState::local;
}

}  // namespace

Optimizer::Optimizer(const std::vector<Parameter>& all) { include("optimizer", all); }
Optimizer::~Optimizer() = default;

void Optimizer::include(std::string_view operation, const std::vector<Parameter>& parameters) {
  check<StateError>(!sharding_, "[{}] this optimizer is sharded: give it all parameters before",
                    operation);
  check<UsageError>(!parameters.empty(), "[{}] there are no parameters", operation);
  check_each_once(operation, parameters);
  for (const Parameter& parameter : parameters)
    check<UsageError>(!own_.contains(parameter.id()), "[{}] {} is in a group already", operation,
                      parameter);
  for (const Parameter& parameter : parameters) {
    parameter.set_optimized();
    arrivals_.push_back(parameter.observe(arrivals));
    own_.emplace(parameter.id(), all_.size());
    all_.push_back(parameter);
  }
}

void check_between_steps(std::string_view operation, const std::vector<Parameter>& parameters) {
  for (const Parameter& parameter : parameters) {
    check<StateError>(!parameter.averaged(),
                      "[{}] {} holds an average for a while (optim::Ema::Applied), and not what "
                      "training has made of it: end that first",
                      operation, parameter);
    check<StateError>(!parameter.unstepped(),
                      "[{}] {} holds a gradient on which no optimizer has stepped, and a run that "
                      "goes on from the state would lose it: first {}call step() (or zero_grad(), "
                      "to give the gradient up)",
                      operation, parameter,
                      waits(parameter) ? "let a backward synchronize it, and " : "");
  }
}

nn::StateDict Optimizer::state_dict() const {
  check_between_steps("state_dict", all_);
  std::set<std::string> names;
  nn::StateDict state;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    const Parameter& parameter = all_[i];
    const std::string& name = parameter.name();
    check<StateError>(
        !name.empty() && names.insert(name).second, "[state_dict] {}: set_name() tells them apart",
        name.empty() ? label_of(all_, i) : fmt::format("two parameters are named '{}'", name));
    for (auto& [what, tensor] : state_of(parameter)) state.emplace(name + "." + what, tensor);
  }
  return state;
}

double take_number(nn::StateDict& state, const std::string& name, DType dtype) {
  const auto found = state.find(name);
  check<StateError>(found != state.end(), "[load_state_dict] the state lacks '{}'", name);
  const Tensor number = std::move(found->second);
  state.erase(found);
  check<ShapeError>(number.shape() == Shape{}, "[load_state_dict] '{}' is {}, not one number", name,
                    number.shape());
  check<DTypeError>(number.dtype() == dtype, "[load_state_dict] '{}' is {}, not {}", name,
                    number.dtype(), dtype);
  return number.item();
}

void Optimizer::load_state_dict(const nn::StateDict& state) {
  check_between_steps("load_state_dict", all_);
  nn::load_tensors("the optimizer", state_dict(), state);
}

double Optimizer::lr() const {
  const StepGraph::Pause pause;  // what group_views() gives is not written here
  const auto views = const_cast<Optimizer*>(this)->group_views();  // only read
  check<StateError>(!views.empty(), "[lr] this optimizer has no groups");
  for (std::size_t k = 1; k < views.size(); ++k)
    check<StateError>(views[k].lr == views[0].lr,
                      "[lr] groups 0 and {} have different learning rates, {} and {}: read them "
                      "from group_views()",
                      k, views[0].lr, views[k].lr);
  if (StepGraph::noting())
    StepGraph::depends_on(life(), [this, then = views[0].lr] { return lr() == then; });
  return views[0].lr;
}

void Optimizer::set_lr(double lr) {
  StepGraph::refuse_in_recording("set_lr");
  check_range("set_lr", "lr", lr, not_negative);
  const auto views = group_views();
  check<StateError>(!views.empty(), "[set_lr] this optimizer has no groups");
  for (const GroupView& group : views) group.lr = lr;
}

void Optimizer::take_step(bool own) {
  const trace::Slice slice(trace::Kind::optimizer, own ? "step, local" : "step");
  check<UsageError>(!own || !sharding_,
                    "[step] a sharded optimizer steps each element on one rank: it has no steps on "
                    "local gradients");
  check_options();
  if (sharding_) (void)sharding_->communicator("step");
  local_ = own;
  const bool managed = std::ranges::any_of(all_, &Parameter::managed);
  if (StepGraph::recording())
    StepGraph::at_failure([this, life = life(), before = synchronizations_] {
      if (!life.expired()) synchronizations_ = before;
    });
  ask_reducers(own);
  check_unmanaged(managed);
  synchronizations_ = synchronizations();
  if (StepGraph::recording())
    StepGraph::at_replay([this, life = life()] {
      if (!life.expired()) synchronizations_ = synchronizations();
    });
  update_and_fingerprint();
  if (StepGraph::noting())
    StepGraph::depends_on(life(), [this, options = options_digest(), then = places()] {
      return options_digest() == options && places() == then;
    });
  if (sharding_) sharding_->gather();
  gradients_are_used();
  for (GradientReducer* reducer : reducers_) reducer->stepped(self_, options_digest(), own);
  if (!trace::here.watcher) return;
  show(trace::Place::parameter);
  trace::here.watcher->step_ends();
}

std::vector<const void*> Optimizer::places() const {
  std::vector<const void*> all;
  for (const Parameter& parameter : all_) {
    all.push_back(parameter.value().raw());
    for (const StateTensor& state : state_of(parameter)) all.push_back(state.value.raw());
  }
  return all;
}

// From the last layer to the first, as backward goes: what differs first is shown first.
void Optimizer::show(trace::Place place) const {
  const bool gradients = place == trace::Place::gradient;
  for (auto one = all_.rbegin(); one != all_.rend(); ++one)
    if (takes_part(*one))
      trace::here.watcher->see({.place = place,
                                .operation = {},
                                .name = one->name(),
                                .value = gradients ? one->gradient_slot() : one->value(),
                                .of_world = !local_ && !one->kept_local()});
}

void Optimizer::update_and_fingerprint() {
  if (trace::here.watcher) show(trace::Place::gradient);
  fingerprinted_ = false;
  update();
  if (sharding_) return fingerprint_a_gradient();
  if (fingerprinted_) return;
  for (const Parameter& parameter : all_)
    if (takes_part(parameter))
      kernels::add_fingerprint({&parameter.value(), 1}, fingerprint(parameter));
}

// No rank steps what another one does, so the fingerprint of the values tells nothing. If one rank
// alone has changed a gradient, all ranks have taken over its wrong step. So the ranks compare the
// gradient of one parameter per step, in turn.
void Optimizer::fingerprint_a_gradient() {
  for (std::size_t k = 0; k < all_.size(); ++k) {
    const Parameter& parameter = all_[next_compared_++ % all_.size()];
    if (!takes_part(parameter)) continue;
    return kernels::add_fingerprint({&parameter.gradient_slot(), 1},
                                    parameter.reducer()->fingerprint(parameter, false));
  }
}

kernels::Fingerprint Optimizer::fingerprint(const Parameter& parameter) {
  fingerprinted_ = true;
  GradientReducer* const reducer = local_ ? nullptr : parameter.reducer();
  return reducer ? reducer->fingerprint(parameter, sharding_ != nullptr) : kernels::Fingerprint{};
}

// Each reducer refuses a gradient that is not synchronized. A step without any synchronization
// since the last one is refused too: if the other ranks' losses reached something, they wait for
// this rank.
void Optimizer::ask_reducers(bool own) {
  reducers_.clear();
  for (const Parameter& parameter : all_) {
    check<StateError>(!parameter.averaged(),
                      "[step] {} holds an average for a while (optim::Ema::Applied), which a step "
                      "would change: end that first",
                      parameter);
    GradientReducer* const reducer = parameter.reducer();
    if (!reducer) continue;
    reducer->step_begins(parameter, own);
    if (std::ranges::find(reducers_, reducer) == reducers_.end()) reducers_.push_back(reducer);
  }
  check<StateError>(
      own || reducers_.empty() || synchronizations() != synchronizations_,
      "[step] nothing was synchronized since the last step: no loss has reached {} or another "
      "parameter on this rank. If that is right, call synchronize() in the place of backward",
      all_.front());
}

std::uint64_t Optimizer::synchronizations() const {
  std::uint64_t all = 0;
  for (const Parameter& parameter : all_)
    if (const GradientReducer* const reducer = parameter.reducer())
      all += reducer->synchronizations();
  return all;
}

// Beside managed parameters, one without a reducer would differ between ranks; so would one that a
// DistributedDataParallel has made equal, and then left. And where no DistributedDataParallel was
// ever made, each rank would train its own model without a word.
void Optimizer::check_unmanaged(bool beside_managed) const {
  const std::optional<Shard> world = local_ || beside_managed ? std::nullopt : World::living();
  for (const Parameter& parameter : all_) {
    check<StateError>(
        parameter.managed() || !parameter.replicated() || parameter.kept_local() || local_ ||
            parameter.gradient_state() == GradientState::nothing,
        "[step] {} is equal on all ranks, and this step would change that: its "
        "DistributedDataParallel has ended, or was made while it was frozen (set_requires_grad). "
        "Make one that manages it and lives as long as training (or, if it is meant to differ from "
        "now on: keep_local())",
        parameter);
    check<StateError>(
        !beside_managed || parameter.managed() || parameter.kept_local() ||
            parameter.gradient_state() == GradientState::nothing,
        "[step] {} is not under DistributedDataParallel, other parameters of this optimizer are: "
        "was it made or replaced after DistributedDataParallel? (If it is meant to differ "
        "between ranks: keep_local())",
        parameter);
    // In a world of one rank, too, where nothing is said to be replicated.
    check<StateError>(
        !sharding_ || parameter.managed() || parameter.gradient_state() == GradientState::nothing,
        "[step] {} is under no DistributedDataParallel (any more), and this optimizer is sharded: "
        "the one that shard() was given must manage all parameters and live as long as training",
        parameter);
    if (world && !parameter.kept_local() && parameter.gradient_state() != GradientState::nothing)
      fail<StateError>(
          "[step] {} is under no DistributedDataParallel, and this is rank {} of {}: each would "
          "train a model of its own. Make one of the model and the world. (If that is meant, or "
          "the program sums gradients by itself: step(optim::local), or keep_local())",
          parameter, world->rank, world->size);
  }
}

void Optimizer::shard(dist::DistributedDataParallel& ddp) {
  check<StateError>(!sharding_, "[shard] this optimizer is sharded already");
  ddp.communicator().membership().refuse_if_ranks_may_be_lost(
      "a sharded optimizer", "each rank keeps a part of its state, which is lost with it");
  std::string names;
  for (const Parameter& parameter : all_) {
    // What is frozen is not stepped. DistributedDataParallel has made it equal.
    const bool frozen = !parameter.requires_grad() && !parameter.managed() &&
                        (parameter.replicated() || ddp.communicator().size() == 1);
    check<StateError>((frozen || parameter.managed()) && !parameter.kept_local(),
                      "[shard] {} is not under the DistributedDataParallel: the ranks do not step "
                      "it alike",
                      parameter);
    names += parameter.name() + "\n";
  }
  dist::check_same(ddp.communicator(), "shard", names);
  release_values();
  try {
    sharding_ = std::make_unique<Sharding>(all_, ddp.communicator());
  } catch (...) {
    take_values();
    throw;
  }
  take_values();
}

void Optimizer::release_values() {
  fail<UsageError>("[shard] this optimizer cannot be sharded: it does not define release_values()");
}

Tensor Optimizer::value_now(const Parameter& parameter, const Tensor& before) const {
  const Tensor now = own_part(parameter, parameter.value());
  check<StateError>(now.device() == before.device(),
                    "[step] {} is on {} now, and was on {} when this optimizer was made: what it "
                    "keeps of it lies there. Move the model first",
                    parameter, now.device(), before.device());
  check<StateError>(!sharding_ || now.raw() == before.raw(),
                    "[step] the value of {} was moved to other memory (place_value), from where "
                    "the ranks that step its parts do not reach it",
                    parameter);
  return now;
}

Tensor Optimizer::own_part(const Parameter& parameter, const Tensor& of) const {
  return sharding_ ? sharding_->own(parameter, of) : of;
}

Tensor Optimizer::whole(const Parameter& parameter, const Tensor& part) const {
  return sharding_ ? sharding_->whole(parameter, part) : part;
}

std::size_t Optimizer::state_bytes() const {
  std::size_t bytes = 0;
  for (const Parameter& parameter : all_)
    for (const StateTensor& state : state_of(parameter)) bytes += state.value.bytes();
  return bytes;
}

bool Optimizer::takes_part(const Parameter& parameter) {
  return parameter.gradient_state() != GradientState::nothing;
}

void Optimizer::gradients_are_used() {
  for (const Parameter& parameter : all_) parameter.set_unstepped(false);
}

void Optimizer::zero_grad() {
  for (const Parameter& parameter : all_) parameter.zero_grad();
}

}  // namespace lockstep::optim
