#include "lockstep/autograd/ops/in_f32.h"

namespace lockstep {

void check_defined(std::string_view operation, std::initializer_list<NamedOperand> operands) {
  for (const NamedOperand& operand : operands)
    check<StateError>(operand.optional || operand.tensor.defined(), "[{}] {} is undefined",
                      operation, operand.name);
}

bool all_16_bit(std::string_view operation, std::initializer_list<NamedOperand> operands) {
  check_defined(operation, operands);
  const NamedOperand* first = nullptr;
  for (const NamedOperand& operand : operands) {
    if (!operand.tensor.defined()) continue;
    if (!first) first = &operand;
    check<DTypeError>(operand.tensor.dtype() == first->tensor.dtype(),
                      "[{}] {} is {}, but {} is {}: cast(tensor, dtype) makes them alike",
                      operation, first->name, first->tensor.dtype(), operand.name,
                      operand.tensor.dtype());
    check<DeviceError>(operand.tensor.device() == first->tensor.device(),
                       "[{}] {} is on {}, but {} is on {}: tensor.to(device) moves it", operation,
                       first->name, first->tensor.device().to_string(), operand.name,
                       operand.tensor.device().to_string());
  }
  return first && is_16_bit(first->tensor.dtype());
}

void check_dtype(std::string_view operation, const NamedOperand& operand, DType dtype) {
  check<DTypeError>(!operand.tensor.defined() || operand.tensor.dtype() == dtype,
                    "[{}] {} is {}, and must be {}", operation, operand.name,
                    operand.tensor.dtype(), dtype);
}

}  // namespace lockstep
