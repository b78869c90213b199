#pragma once
/// What every kernel asks of its tensors before it touches them, so that the same mistake reads the
/// same everywhere.

#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// `name` is the argument's name in the declaration: "[sum_rows] out: expected (3,), got (4,)".
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

/// Defined, of this dtype, and in memory that the processor can read.
inline void check_host(std::string_view operation, std::string_view name, const Tensor& tensor,
                       DType dtype) {
  check<ShapeError>(tensor.defined(), "[{}] {} is undefined", operation, name);
  check<DTypeError>(tensor.dtype() == dtype, "[{}] {}: expected {}, got {}", operation, name, dtype,
                    tensor.dtype());
  if (tensor.device().kind != Device::Kind::cpu)
    fail<DeviceError>("[{}] {}: expected a tensor on cpu, got {}", operation, name,
                      tensor.device().to_string());
}

}  // namespace lockstep::kernels
