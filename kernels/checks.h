#pragma once
/// What every kernel asks of its tensors before it touches them, so that the same mistake reads the
/// same everywhere. `name` is the argument's name in the declaration: "[sum_rows] out: expected
/// shape (3,), got (4,)".

#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

inline void check_shape(std::string_view operation, std::string_view name, const Tensor& tensor,
                        const Shape& expected) {
  check<ShapeError>(tensor.shape() == expected, "[{}] {}: expected shape {}, got {}", operation,
                    name, expected, tensor.shape());
}

inline void check_rank(std::string_view operation, std::string_view name, const Tensor& tensor,
                       int rank) {
  check<ShapeError>(tensor.rank() == rank, "[{}] {}: expected {} dimensions, got shape {}",
                    operation, name, rank, tensor.shape());
}

/// For the first operand, which the others are then compared with.
inline void check_defined(std::string_view operation, std::string_view name, const Tensor& tensor) {
  check<ShapeError>(tensor.defined(), "[{}] {} is undefined", operation, name);
}

/// What check_beside says. It stands apart, so that the check itself is a few comparisons.
[[gnu::cold, gnu::noinline]] inline void refuse_beside(std::string_view operation,
                                                       std::string_view name, const Tensor& tensor,
                                                       DType dtype, const Tensor& operand) {
  check_defined(operation, name, tensor);
  check<DTypeError>(tensor.dtype() == dtype, "[{}] {}: expected {}, got {}", operation, name, dtype,
                    tensor.dtype());
  fail<DeviceError>("[{}] {}: expected a tensor on {}, got {}", operation, name,
                    operand.device().to_string(), tensor.device().to_string());
}

/// Defined, of this dtype, and on the device of `operand`, which is defined.
inline void check_beside(std::string_view operation, std::string_view name, const Tensor& tensor,
                         DType dtype, const Tensor& operand) {
  if (!tensor.defined() || tensor.dtype() != dtype || tensor.device() != operand.device())
      [[unlikely]]
    refuse_beside(operation, name, tensor, dtype, operand);
}

/// Defined, and of the dtype, on the device and of the shape of `operand`.
inline void check_alike(std::string_view operation, std::string_view name, const Tensor& tensor,
                        const Tensor& operand) {
  check_beside(operation, name, tensor, operand.dtype(), operand);
  check_shape(operation, name, tensor, operand.shape());
}

/// One element, of the dtype and on the device of `operand`.
inline void check_scalar(std::string_view operation, std::string_view name, const Tensor& tensor,
                         const Tensor& operand) {
  check_beside(operation, name, tensor, operand.dtype(), operand);
  check<ShapeError>(tensor.numel() == 1, "[{}] {}: expected one element, got shape {}", operation,
                    name, tensor.shape());
}

/// f32 or f64.
inline void check_differentiable(std::string_view operation, const Tensor& tensor) {
  check<DTypeError>(is_differentiable(tensor.dtype()), "[{}] takes f32 or f64, got {}", operation,
                    tensor.dtype());
}

/// f32, f64, f16 or bf16.
inline void check_floating(std::string_view operation, const Tensor& tensor) {
  visit_any_floating(operation, tensor.dtype(), [](auto) {});
}

}  // namespace lockstep::kernels
