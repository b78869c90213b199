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

Parameter::Parameter(Tensor value, std::string name)
    : state_(std::make_shared<detail::ParameterState>()) {
  check<DTypeError>(is_differentiable(value.dtype()), "[parameter] '{}' must be f32 or f64, not {}",
                    name, value.dtype());
  state_->value = value.detach();
  state_->name = std::move(name);
}

const std::string& Parameter::name() const { return state_->name; }
void Parameter::set_name(std::string name) const { state_->name = std::move(name); }
const Tensor& Parameter::value() const { return state_->value; }

void Parameter::move_to(Device device) const {
  if (value().device() == device) return;
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

bool Parameter::requires_grad() const { return state_->requires_grad; }
void Parameter::set_requires_grad(bool requires_grad) const {
  state_->requires_grad = requires_grad;
}

Tensor Parameter::gradient() const {
  return state_->state == GradientState::nothing ? Tensor() : gradient_slot();
}

GradientState Parameter::gradient_state() const { return state_->state; }
void Parameter::set_gradient_state(GradientState state) const { state_->state = state; }

const Tensor& Parameter::gradient_slot() const {
  if (!state_->slot.defined())
    state_->slot =
        Tensor::empty(state_->value.shape(), state_->value.dtype(), state_->value.device());
  return state_->slot;
}

void Parameter::place_gradient(Tensor slot) const {
  check<StateError>(!managed(), "[place_gradient] '{}' is under a reducer, which owns its memory",
                    name());
  if (slot.defined()) {
    check<ShapeError>(slot.shape() == state_->value.shape(),
                      "[place_gradient] '{}' is {}, its gradient's memory {}", name(),
                      state_->value.shape(), slot.shape());
    check<DTypeError>(slot.dtype() == state_->value.dtype(),
                      "[place_gradient] '{}' is {}, its gradient's memory {}", name(),
                      state_->value.dtype(), slot.dtype());
    check<DeviceError>(slot.device() == state_->value.device(),
                       "[place_gradient] '{}' is on {}, its gradient's memory on {}", name(),
                       state_->value.device().to_string(), slot.device().to_string());
  }
  state_->slot = std::move(slot);
  state_->state = GradientState::nothing;
}

int Parameter::pending() const { return state_->pending; }

Observation Parameter::observe(GradientObserver& observer) const {
  state_->observers.push_back(&observer);
  return {state_, &observer};
}

const std::vector<GradientObserver*>& Parameter::observers() const { return state_->observers; }

void Parameter::keep_local() const { state_->kept_local = true; }
bool Parameter::kept_local() const { return state_->kept_local; }

bool Parameter::managed() const {
  return std::ranges::any_of(state_->observers,
                             [](const GradientObserver* o) { return o->summed_ranks() > 0; });
}

}  // namespace lockstep
