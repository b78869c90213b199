#include "lockstep/autograd/parameter.h"

#include <algorithm>

namespace lockstep {

Observation& Observation::operator=(Observation&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(observer_, other.observer_);
  return *this;
}

Observation::~Observation() {
  if (!state_) return;
  auto& observers = state_->observers;
  observers.erase(std::ranges::find(observers, observer_));
}

Parameter::Parameter(const Tensor& value, std::string name)
    : state_(std::make_shared<detail::ParameterState>()) {
  check<StateError>(value.defined(), "[parameter] '{}' of an undefined tensor", name);
  check<DTypeError>(is_differentiable(value.dtype()), "[parameter] '{}' must be f32 or f64, not {}",
                    name, value.dtype());
  state_->value = value.detach();
  state_->name = std::move(name);
}

detail::ParameterState& Parameter::existing(std::string_view call) const {
  check<StateError>(defined(), "[{}] of an undefined parameter", call);
  return *state_;
}

const std::string& Parameter::name() const { return existing("name").name; }
void Parameter::set_name(std::string name) const { existing("set_name").name = std::move(name); }
const Tensor& Parameter::value() const { return existing("value").value; }

void Parameter::move_to(Device device) const {
  if (existing("move_to").value.device() == device) return;
  check<StateError>(!managed(), "[move_to] '{}' is under a reducer: move the model before that",
                    name());
  state_->value = state_->value.to(device);
  place_gradient({});
}

Parameter::operator Tensor() const {
  if (!state_) return {};
  Tensor operand = state_->value;
  if (state_->requires_grad) operand.set_gradient_ref({GradientRef::parameter, state_.get()});
  return operand;
}

bool Parameter::requires_grad() const { return existing("requires_grad").requires_grad; }
void Parameter::set_requires_grad(bool requires_grad) const {
  existing("set_requires_grad").requires_grad = requires_grad;
}

Tensor Parameter::gradient() const {
  return existing("gradient").state == GradientState::nothing ? Tensor() : gradient_slot();
}

GradientState Parameter::gradient_state() const { return existing("gradient_state").state; }
void Parameter::set_gradient_state(GradientState state) const {
  existing("set_gradient_state").state = state;
}

const Tensor& Parameter::gradient_slot() const {
  Tensor& slot = existing("gradient_slot").slot;
  if (!slot.defined()) slot = Tensor::empty(value().shape(), value().dtype(), value().device());
  return slot;
}

void Parameter::place_gradient(Tensor slot) const {
  const Tensor& value = existing("place_gradient").value;
  check<StateError>(!managed(), "[place_gradient] '{}' is under a reducer, which owns its memory",
                    name());
  if (slot.defined()) {
    check<ShapeError>(slot.shape() == value.shape(),
                      "[place_gradient] '{}' is {}, its gradient's memory {}", name(),
                      value.shape(), slot.shape());
    check<DTypeError>(slot.dtype() == value.dtype(),
                      "[place_gradient] '{}' is {}, its gradient's memory {}", name(),
                      value.dtype(), slot.dtype());
    check<DeviceError>(slot.device() == value.device(),
                       "[place_gradient] '{}' is on {}, its gradient's memory on {}", name(),
                       value.device().to_string(), slot.device().to_string());
  }
  state_->slot = std::move(slot);
  state_->state = GradientState::nothing;
}

int Parameter::pending() const { return existing("pending").pending; }

Observation Parameter::observe(GradientObserver& observer) const {
  existing("observe").observers.push_back(&observer);
  return {state_, &observer};
}

const std::vector<GradientObserver*>& Parameter::observers() const {
  return existing("observers").observers;
}

void Parameter::keep_local() const { existing("keep_local").kept_local = true; }
bool Parameter::kept_local() const { return existing("kept_local").kept_local; }

bool Parameter::managed() const {
  return std::ranges::any_of(existing("managed").observers,
                             [](const GradientObserver* o) { return o->summed_ranks() > 0; });
}

}  // namespace lockstep
