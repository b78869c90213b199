#include "lockstep/autograd/parameter.h"

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>

#include "lockstep/autograd/gradient_reducer.h"
#include "lockstep/core/digest.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/text/utf8.h"

namespace lockstep {

Observation Parameter::observe(GradientObserver& observer) const {
  detail::ParameterState& it = state("observe");
  if (GradientReducer* const reducer = observer.as_reducer()) {
    check<StateError>(!it.reducer, "[observe] {} is under a DistributedDataParallel already",
                      *this);
    it.reducer = reducer;
    it.replicated = it.replicated || reducer->ranks() > 1;
  }
  it.observers.push_back(&observer);
  return {&observer, [state = state_, gone = &observer](const void*) {
            state->observers.erase(std::ranges::find(state->observers, gone));
            if (state->reducer == gone) state->reducer = nullptr;
          }};
}

void Parameter::throw_undefined(const char* call) {
  fail<StateError>("[{}] of an undefined parameter", call);
}

namespace {

// It stands in safetensors files and in JSON, which are UTF-8.
void check_name(std::string_view name) {
  check<UsageError>(is_utf8(name), "[parameter] the name '{}' is not UTF-8", name);
}

}  // namespace

Parameter::Parameter(const Tensor& value, std::string name)
    : state_(std::make_shared<detail::ParameterState>()) {
  const auto named = [&] {
    return name.empty() ? "one without a name" : fmt::format("'{}'", name);
  };
  check<StateError>(value.defined(), "[parameter] {}, of an undefined tensor", named());
  check<DTypeError>(is_differentiable(value.dtype()), "[parameter] {} must be f32 or f64, not {}",
                    named(), value.dtype());
  check_name(name);
  state_->value = value.detach();
  state_->name = std::move(name);
}

void Parameter::set_name(std::string name) const {
  check_name(name);
  state("set_name").name = std::move(name);
}

std::string Parameter::label() const {
  return name().empty()
             ? fmt::format("a parameter of shape {} that no visit() names", value().shape())
             : fmt::format("'{}'", name());
}

namespace {

using Life = std::weak_ptr<detail::ParameterState>;

/// A recording that fails leaves the gradient as it was: nothing was computed.
void undo_at_failure(const Life& life) {
  const auto it = life.lock();
  StepGraph::at_failure([life, state = it->state, unstepped = it->unstepped, tape = it->gradient_of,
                         lanes_wait = it->lanes_wait] {
    const auto living = life.lock();
    if (!living) return;
    living->state = state;
    living->unstepped = unstepped;
    living->gradient_of = tape;
    living->lanes_wait = lanes_wait;
    for (Tensor* const memory : {&living->slot, &living->lanes})
      if (memory->storage().lost()) *memory = {};
  });
}

/// Where the step writes the value, each replay says so: tapes from before it ask.
void tell_replays_of_changes(const Life& life) {
  const auto it = life.lock();
  StepGraph::at_end([life, version = it->value.storage().version()] {
    const auto living = life.lock();
    if (!living || living->value.storage().version() == version) return;
    StepGraph::at_replay([life] {
      if (const auto still = life.lock()) still->value.storage().changed();
    });
  });
}

}  // namespace

// What a step leaves behind on the host, its replays do not: the end of a recording refuses that of
// gradients, and replays do that of optimizers.
void Parameter::note_in_step() const {
  detail::ParameterState& it = *state_;
  if (!StepGraph::first_time(&it)) return;
  const Life life = state_;
  const auto now = [](const detail::ParameterState& p) {
    return std::tuple(p.requires_grad, p.averaged, p.value.raw(), p.reducer, p.observers.size());
  };
  StepGraph::depends_on(life, [&it, now, then = now(it)] { return now(it) == then; });
  if (!StepGraph::recording()) return;  // what is recorded next may begin with other gradients
  StepGraph::depends_on(life, [&it, then = it.state] { return it.state == then; });
  undo_at_failure(state_);
  StepGraph::depends_on(life, [&it, then = it.slot.raw()] { return it.slot.raw() == then; });
  tell_replays_of_changes(state_);
  StepGraph::at_end([life, before = it.state, unstepped = it.unstepped] {
    const auto living = life.lock();
    if (!living) return;
    if (living->unstepped != unstepped)
      StepGraph::at_replay([life, after = living->unstepped] {
        if (const auto still = life.lock()) still->unstepped = after;
      });
    if (living->state == before) return;
    const bool gained = before == GradientState::nothing;
    fail<NotRecordable>(
        "[step graph] the step begins {} a gradient of '{}' and ends {} one, which its replays "
        "would not do: {}",
        gained ? "without" : "with", living->name, gained ? "with" : "without",
        gained ? "let it end with zero_grad(), or begin with it"
               : "let it begin with backward, or leave zero_grad() to the program");
  });
}

void Parameter::set_gradient_state(GradientState now) const {
  state("set_gradient_state").state = now;
}

Parameter::operator Tensor() const {
  if (!state_) return {};
  Tensor operand = state("Tensor").value;
  if (state_->requires_grad) operand.set_gradient_ref({GradientRef::parameter, state_.get()});
  return operand;
}

void Parameter::set_requires_grad(bool yes) const {
  if (std::exchange(state("set_requires_grad").requires_grad, yes) != yes && state_->reducer)
    state_->reducer->requires_grad_changes(*this, yes);
}

Tensor Parameter::gradient() const {
  return state("gradient").state == GradientState::nothing ? Tensor() : gradient_slot();
}

const Tensor& Parameter::gradient_slot() const {
  Tensor& slot = state("gradient_slot").slot;
  if (!slot.defined()) slot = Tensor::empty(value().shape(), value().dtype(), value().device());
  slot.set_gradient_ref({.gradient_of = state_->gradient_of});
  return slot;
}

void Parameter::move_to(Device device) const {
  if (state("move_to").value.device() == device) return;
  check<StateError>(
      !managed(), "[move_to] {} is under DistributedDataParallel: move the model before it is made",
      *this);
  state_->value = state_->value.to(device);
  place_gradient({});
}

void Parameter::check_memory(std::string_view what, const Tensor& memory) const {
  check<ShapeError>(memory.shape() == value().shape(), "[{}] {} is {}, the memory {}", what, *this,
                    value().shape(), memory.shape());
  check<DTypeError>(memory.dtype() == value().dtype(), "[{}] {} is {}, the memory {}", what, *this,
                    value().dtype(), memory.dtype());
  check<DeviceError>(memory.device() == value().device(), "[{}] {} is on {}, the memory on {}",
                     what, *this, value().device().to_string(), memory.device().to_string());
}

void Parameter::place_value(const Tensor& memory) const {
  const Tensor old = value();
  if (memory.defined()) check_memory("place_value", memory);
  state_->value = memory.defined() ? memory.detach() : old.clone();
  if (memory.defined()) state_->value.copy_from(old);
}

void Parameter::place_gradient(Tensor slot) const {
  const detail::ParameterState& it = state("place_gradient");
  check<StateError>(!it.reducer,
                    "[place_gradient] {} is under DistributedDataParallel, which owns its memory",
                    *this);
  if (slot.defined()) check_memory("place_gradient", slot);
  state_->slot = std::move(slot);
  zero_grad();
}

void check_each_once(std::string_view operation, const std::vector<Parameter>& parameters) {
  static std::atomic<std::uint64_t> calls{0};  // of all threads: each call has its own number
  const std::uint64_t call = ++calls;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    check<UsageError>(parameters[i].defined(), "[{}] parameter {} is undefined", operation, i);
    check<UsageError>(std::exchange(parameters[i].state_->listed, call) != call,
                      "[{}] {} is given twice", operation, label_of(parameters, i));
  }
}

std::string label_of(const std::vector<Parameter>& parameters, std::size_t i) {
  const Parameter& parameter = parameters[i];
  return parameter.name().empty()
             ? fmt::format("parameter {} (unnamed, of shape {})", i, parameter.value().shape())
             : parameter.label();
}

std::string parameter_digest(const std::vector<Parameter>& parameters) {
  check_each_once("parameter_digest", parameters);
  Digest digest;
  for (const Parameter& parameter : parameters) {
    const Tensor value = parameter.value().to(Device{});
    digest.add({value.raw(), value.bytes()});
  }
  return Digest::hex(digest.value());
}

}  // namespace lockstep
