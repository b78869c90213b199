#pragma once
/// How often this thread has copied a tensor's elements into another tensor: what a design that
/// promises to copy nothing is checked by.

#include <cstdint>

namespace lockstep {

/// Counts Tensor::copy_from (so clone() and to(), too), and gradients that backward could not write
/// or share in place.
inline thread_local std::uint64_t copies_made = 0;

}  // namespace lockstep
