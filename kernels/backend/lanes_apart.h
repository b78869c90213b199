#pragma once
/// matmul_lanes for backends without a kernel of their own for it.

#include <span>

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// Every lane's product into a matrix of its own, then the tree over the matrices. Arguments are
/// checked, as those of Backend::matmul_lanes.
void matmul_lanes_apart(const Tensor& a, const Tensor& b, const Tensor& out,
                        std::span<const std::int64_t> lanes, bool accumulate);

}  // namespace lockstep::kernels
