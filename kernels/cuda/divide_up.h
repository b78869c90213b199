#pragma once
/// A quotient that is rounded up: how many blocks of d cover n.

#include <cstdint>

namespace lockstep::kernels {

/// n >= 0, d > 0.
constexpr std::int64_t divide_up(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

}  // namespace lockstep::kernels
