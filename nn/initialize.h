#pragma once
/// Initializers: they fill a tensor of f32 or f64, drawn from the thread's default generator, with
/// PyTorch's numbers for the same seed on every device. Call them before DistributedDataParallel is
/// made, which sends rank 0's values to all.
///
///   nn::init::xavier_uniform(layer.weight.value());
///
/// The fans of a tensor (out, in, ...): fan_in = in * ..., fan_out = out * .... Throws ShapeError
/// for fewer than two dimensions.

#include "lockstep/core/tensor.h"

namespace lockstep::nn::init {

/// Which fan a bound is made of.
enum class Fan : std::uint8_t { in, out };

/// U(low, high), N(mean, stddev^2), and one value for all elements.
void uniform(const Tensor& w, double low = 0, double high = 1);
void normal(const Tensor& w, double mean = 0, double stddev = 1);
inline void constant(const Tensor& w, double value) { w.fill(value); }

/// sqrt(2), for ReLU; sqrt(2 / (1 + slope^2)) for leaky_relu; 5/3 is the custom for tanh.
double relu_gain(double slope = 0);

/// U(-a, a), a = gain sqrt(3 / fan) (He et al., "Delving deep into rectifiers", ICCV 2015).
void kaiming_uniform(const Tensor& w, double gain = relu_gain(), Fan fan = Fan::in);
/// N(0, gain^2 / fan).
void kaiming_normal(const Tensor& w, double gain = relu_gain(), Fan fan = Fan::in);
/// U(-a, a), a = gain sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio, "Understanding the
/// difficulty of training deep feedforward neural networks", AISTATS 2010).
void xavier_uniform(const Tensor& w, double gain = 1);
/// N(0, gain^2 2 / (fan_in + fan_out)).
void xavier_normal(const Tensor& w, double gain = 1);
/// As a matrix (out, the rest), rows or columns that are orthogonal and of length `gain` (Saxe,
/// McClelland and Ganguli, "Exact solutions to the nonlinear dynamics of learning in deep linear
/// neural networks", ICLR 2014): Q of the QR decomposition of a matrix of normal numbers, with the
/// signs of R's diagonal. PyTorch's numbers to rounding.
void orthogonal(const Tensor& w, double gain = 1);

}  // namespace lockstep::nn::init
