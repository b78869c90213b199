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
      "[backward] {} was changed in place after forward had saved it: run backward "
      "before it changes (an optimizer's step, copy_from, fill), or run forward again",
      of_parameter && !parameter->name.empty()
          ? fmt::format("'{}' of shape {}", parameter->name, tensor_.shape())
          : fmt::format("{} of shape {}", of_parameter ? "an unnamed parameter" : "a tensor",
                        tensor_.shape()));
}

}  // namespace lockstep
