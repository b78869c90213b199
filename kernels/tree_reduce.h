#pragma once
/// The one way in which contributions are added up: a balanced binary tree over the sources, in
/// their order, element by element. The sources are cut at the largest power of two below their
/// number:
///
///   1  a          3  (a + b) + c                5  ((a + b) + (c + d)) + e
///   2  a + b      4  (a + b) + (c + d)          6  ((a + b) + (c + d)) + (e + f)
///
/// Floating-point addition is not associative, so the shape of the tree is part of the result. It
/// depends on the number of sources alone: not on who folds, in which portions, or on which
/// transport the bytes travelled. A balanced tree also rounds less than a chain: the error grows
/// with log2(n) instead of n (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
///
/// f16 and bf16 are added up in f32 and rounded once, at the root: to the nearest, ties to even.

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// Every destination := the tree sum of all sources, `count` elements each. A destination may be
/// one of the sources (the same first element), otherwise it must not overlap any. At least one
/// source. Integers wrap around. Throws DTypeError for u8. All pointers are readable by `device`;
/// on a GPU there may be at most 16 sources and 16 destinations.
void tree_reduce(DType dtype, std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, std::int64_t count, Device device = {});

/// parts (n, ...) -> (1, ...): their tree sum, in the memory of the first; the others are lost. Any
/// n, also on a GPU.
Tensor tree_sum(const Tensor& parts);

}  // namespace lockstep::kernels
