#pragma once
/// What operations by elements are made of, where operands are repeated to one shape.

#include "lockstep/autograd/tape.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep {

/// A number of x's dtype, on its device: ().
Tensor like(const Tensor& x, double number);

/// op(a, b), which no tape records.
Tensor combined(kernels::Binary op, const Tensor& a, const Tensor& b);

/// Adds sign * `gradient` to the gradient of operand i: summed where that was repeated. Nothing
/// happens unless it is needed.
void contribute(Gradients& g, int i, const Tensor& gradient, double sign = 1);

namespace detail {
/// i64 0, 1, ..., n - 1. On a GPU they are made there: a step that is recorded copies nothing from
/// the host.
Tensor positions(std::int64_t n, Device device);
}  // namespace detail

}  // namespace lockstep
