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

/// Calls f(constants...), one for each flag.
template <class F>
void with_flags(F&& f) {
  f();
}
template <class F, class... Flags>
void with_flags(F&& f, bool first, Flags... rest) {
  with_flag(first, [&](auto constant) {
    with_flags([&](auto... constants) { f(constant, constants...); }, rest...);
  });
}

}  // namespace lockstep::kernels
