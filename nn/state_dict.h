#pragma once
/// What modules, optimizers and others save and load: tensors by name.

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::nn {

using StateDict = std::map<std::string, Tensor>;

/// The names in which what was loaded and what loads it differ.
struct LoadReport {
  std::vector<std::string> missing;     ///< not in the state; these tensors are as they were
  std::vector<std::string> unexpected;  ///< in the state alone
};

/// Copies the tensors of `state` into those of `own` that have their names. With `strict`, throws
/// StateError, which lists the names, if one is missing or unexpected. Throws ShapeError or
/// DTypeError for a tensor that does not fit; if it throws, nothing has been copied. `owner` says
/// in errors whose state it is: "the model".
LoadReport load_tensors(std::string_view owner, const StateDict& own, const StateDict& state,
                        bool strict = true);

/// The number in a tensor of one element that counts something: steps, for example. Throws
/// StateError, with the tensor's name, if it is negative.
std::int64_t count_in(std::string_view name, const Tensor& tensor);

}  // namespace lockstep::nn
