#include "lockstep/autograd/saved_tensor.h"

#include "lockstep/autograd/parameter.h"

namespace lockstep {

SavedTensor::SavedTensor(const Tensor& tensor)
    : tensor_(tensor.defined() ? tensor.detach() : tensor),
      origin_(tensor.gradient_ref()),
      version_(tensor.defined() ? tensor.storage().version() : 0) {}

void SavedTensor::throw_changed() const {
  const bool of_parameter = origin_.tape == GradientRef::parameter;
  const auto* parameter = static_cast<const detail::ParameterState*>(origin_.target);
  fail<StateError>(
      "[backward] {} of shape {} was changed in place after forward had saved it: run backward "
      "before it changes (an optimizer's step, copy_from, fill), or run forward again",
      of_parameter ? fmt::format("'{}'", parameter->name) : "a tensor", tensor_.shape());
}

}  // namespace lockstep
