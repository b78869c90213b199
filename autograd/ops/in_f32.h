#pragma once
/// How operations take 16-bit operands: they compute in f32 and round once, at the end. Backward
/// does the same: a gradient is computed in f32, and rounded to its operand's dtype. (Products of
/// matrices, and operations that only move elements, need no f32 copies of their operands.)

#include <initializer_list>
#include <string_view>

#include "lockstep/autograd/ops.h"

namespace lockstep {

struct NamedOperand {
  const char* name;
  const Tensor& tensor;
  bool optional = false;  // it may be undefined
};

/// What each operation asks first. Throws StateError for one that is undefined and not optional:
/// "[add] b is undefined".
void check_defined(std::string_view operation, std::initializer_list<NamedOperand> operands);

/// Whether the operands are 16-bit ones. Undefined ones do not count. Throws as check_defined, and
/// DTypeError if two dtypes differ: "[add] a is f32, but b is f64"; DeviceError if two devices do.
bool all_16_bit(std::string_view operation, std::initializer_list<NamedOperand> operands);

namespace detail {

inline const Tensor& first_tensor(const Tensor& x, const auto&...) { return x; }
const Tensor& first_tensor(const auto&, const auto&... others) { return first_tensor(others...); }

inline Tensor widened(const Tensor& x) {
  return x.defined() && is_16_bit(x.dtype()) ? cast(x, DType::f32) : x;
}
const auto& widened(const auto& argument) { return argument; }

}  // namespace detail

/// f(arguments), its 16-bit tensors as f32, and rounded to the dtype of the first tensor.
template <class F, class... Arguments>
Tensor in_f32(F&& f, const Arguments&... arguments) {
  return cast(f(detail::widened(arguments)...), detail::first_tensor(arguments...).dtype());
}

/// Throws DTypeError unless the operand has this dtype: "[gather] index is f32, and must be i64".
void check_dtype(std::string_view operation, const NamedOperand& operand, DType dtype);

}  // namespace lockstep
