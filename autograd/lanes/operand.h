#pragma once
/// How an operation names its operands to the tape: see rows.h.

#include <cstdint>
#include <span>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// An operand of an operation, and what the rows of the output take from it (rows.h).
struct Operand {
  enum class Rows : std::uint8_t { unsaid, apart, shared };
  Operand(const Tensor* value, Rows use = Rows::unsaid) : tensor(value), rows(use) {}  // NOLINT
  const Tensor* tensor;
  Rows rows;
};

/// What an operation makes of them. The derivative of `steps` is 0 wherever there is one.
enum class Makes : std::uint8_t { rows, steps, loss, linear };

namespace detail {
/// Of what is not recorded: marks the output, unless its memory is that of an operand.
void mark_rows(std::string_view operation, const Tensor& output, std::span<const Operand> operands);
}  // namespace detail

}  // namespace lockstep
