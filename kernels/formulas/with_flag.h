#pragma once
/// A run-time flag as a compile-time constant, for loops: one without branches inside is one that
/// the compiler vectorizes.

#include <type_traits>

namespace lockstep::kernels {

/// Calls f(std::true_type{}) or f(std::false_type{}).
template <class F>
void with_flag(bool flag, F&& f) {
  if (flag)
    f(std::true_type{});
  else
    f(std::false_type{});
}

}  // namespace lockstep::kernels
