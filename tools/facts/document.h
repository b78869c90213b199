#pragma once
/// docs/kernels.md: what the compiler made of every kernel.

#include <string>
#include <vector>

#include "lockstep/tools/facts/build.h"
#include "lockstep/tools/facts/kernel_list.h"

namespace lockstep::facts {

/// The whole document: a table per .cu file, one row per kernel or, up to `few_instantiations`, one
/// per instantiation of its template; at last the list of kernels with their tests.
std::string document(const Build& build, const std::vector<ListedKernel>& list);

inline constexpr int few_instantiations = 4;

/// The document's line that names compiler and architectures: other facts are to be expected with
/// others.
std::string made_by(const Build& build);

}  // namespace lockstep::facts
