#pragma once
/// Compares the gradients of a function with numeric ones. In f64: with f32 the differences drown
/// in rounding.
///
/// The function's output y is contracted with fixed weights p of mixed signs to a scalar, and for
/// every input element the recorded derivative is compared with the central difference
///   d(sum p y)/dx ~ (sum p y(x + h) - sum p y(x - h)) / 2h,   h = step * max(1, |x|).

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep {

struct GradcheckResult {
  double worst = 0;   ///< the largest |recorded - numeric| / max(1, |recorded|, |numeric|)
  std::string where;  ///< "input 1 element 7: recorded 0.5, numeric 0.25"
};

using TensorFunction = std::function<Tensor(std::span<const Tensor>)>;

/// `inputs` are f64 and are left as they were. The function must be smooth at the inputs.
GradcheckResult gradcheck(const TensorFunction& function, const std::vector<Tensor>& inputs,
                          double step = 1e-6);

}  // namespace lockstep
