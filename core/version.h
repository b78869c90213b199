#pragma once
/// Which release of the project this is.

#include <string_view>

namespace lockstep {

/// "0.1.0": the version in CMakeLists.txt that the library was built from.
std::string_view version();

}  // namespace lockstep
