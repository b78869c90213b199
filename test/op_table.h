#pragma once
/// One table of all differentiable operations, with the shapes at which they are tried: it drives
/// the gradient checks, comparisons between devices, and rows of benchmarks.

#include <string>
#include <vector>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/core/tensor.h"

struct OpCase {
  std::string name;  ///< "matmul a b^T"
  lockstep::TensorFunction function;
  std::vector<std::vector<lockstep::Shape>> shapes;  ///< per variant: the operands' shapes
  double low = -2, high = 2;                         ///< operands' values lie between
};

const std::vector<OpCase>& op_table();

/// Values in [low, high), different for every operand and element, away from 0 by 0.05 (so that
/// relu is smooth there).
std::vector<lockstep::Tensor> operands(const OpCase& op, const std::vector<lockstep::Shape>& shapes,
                                       lockstep::DType dtype);
