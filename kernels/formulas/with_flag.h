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

/// Calls f(constant) with those bits of `flags` that are in `mask`.
template <unsigned mask, unsigned known = 0, class F>
void with_flags(unsigned flags, F&& f) {
  if constexpr (mask == 0) {
    f(std::integral_constant<unsigned, known>{});
  } else {
    constexpr unsigned bit = mask & -mask;
    if (flags & bit)
      with_flags<mask - bit, known + bit>(flags, f);
    else
      with_flags<mask - bit, known>(flags, f);
  }
}

}  // namespace lockstep::kernels
