#pragma once
/// How operations take 16-bit operands: they compute in f32 and round once, at the end. Backward
/// does the same: a gradient is computed in f32, and rounded to its operand's dtype. (Products of
/// matrices, and operations that only move elements, need no f32 copies of their operands.)

#include <initializer_list>
#include <string_view>

#include "lockstep/autograd/ops.h"

namespace lockstep {

struct Operand {
  const char* name;
  const Tensor& tensor;
};

/// Whether the operands are 16-bit ones. Undefined ones do not count. Throws DTypeError if two
/// dtypes differ: "[add] a is f32, but b is f64".
bool all_16_bit(std::string_view operation, std::initializer_list<Operand> operands);

/// f(operands), computed in f32 and rounded to the dtype of the first one.
template <class F, class... Tensors>
Tensor in_f32(F&& f, const Tensor& first, const Tensors&... others) {
  const auto wide = [](const Tensor& x) { return x.defined() ? cast(x, DType::f32) : x; };
  return cast(f(wide(first), wide(others)...), first.dtype());
}

/// Throws DTypeError unless the operand has this dtype: "[gather] index is f32, and must be i64".
void check_dtype(std::string_view operation, const Operand& operand, DType dtype);

}  // namespace lockstep
