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

/// How far the same operation may differ between devices in f32, relative to the larger of 1 and
/// the largest magnitude in the result: products and sums of n terms differ by their order, the
/// others by their functions' last places. In f64: this times 1e-8.
double device_tolerance(const OpCase& op);

/// Shapes with more elements than one pass of a grid of the simulator covers, odd ones.
std::vector<std::vector<lockstep::Shape>> large_shapes(const OpCase& op);

const std::vector<OpCase>& op_table();
std::vector<OpCase> vocabulary_ops();  ///< the part of it in vocabulary_ops.cpp

/// Values in [low, high), different for every operand and element, away from 0 by 0.05 (so that
/// relu is smooth there).
std::vector<lockstep::Tensor> operands(const OpCase& op, const std::vector<lockstep::Shape>& shapes,
                                       lockstep::DType dtype, lockstep::Device device);

/// What f32 or f64 operands give on a device: the value, and the gradients of its sum.
std::vector<lockstep::Tensor> results(const OpCase& op, const std::vector<lockstep::Shape>& shapes,
                                      lockstep::DType dtype, lockstep::Device device);

/// "matmul a b^T (3, 5) (4, 5)".
std::string title(const OpCase& op, const std::vector<lockstep::Shape>& shapes);
