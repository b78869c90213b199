#include "lockstep/nn/initialize.h"

#include <cmath>

#include "lockstep/core/generator.h"

namespace lockstep::nn::init {
namespace {

struct Fans {
  double in, out;
  double of(Fan fan) const { return fan == Fan::in ? in : out; }
};

Fans fans_of(const Tensor& w) {
  check<ShapeError>(w.rank() >= 2 && w.numel() > 0,
                    "[init] fans of a tensor of shape {}: two dimensions are needed", w.shape());
  const auto all = static_cast<double>(w.numel());
  return {all / static_cast<double>(w.size(0)), all / static_cast<double>(w.size(1))};
}

}  // namespace

void uniform(const Tensor& w, double low, double high) { default_generator().uniform(w, low, high); }
void normal(const Tensor& w, double mean, double stddev) {
  default_generator().normal(w, mean, stddev);
}

double relu_gain(double slope) { return std::sqrt(2.0 / (1 + slope * slope)); }

// In PyTorch's order of operations, so that the bounds have its bits.
void kaiming_uniform(const Tensor& w, double gain, Fan fan) {
  const double bound = std::sqrt(3.0) * (gain / std::sqrt(fans_of(w).of(fan)));
  uniform(w, -bound, bound);
}
void kaiming_normal(const Tensor& w, double gain, Fan fan) {
  normal(w, 0, gain / std::sqrt(fans_of(w).of(fan)));
}
void xavier_uniform(const Tensor& w, double gain) {
  const Fans fans = fans_of(w);
  const double bound = std::sqrt(3.0) * (gain * std::sqrt(2.0 / (fans.in + fans.out)));
  uniform(w, -bound, bound);
}
void xavier_normal(const Tensor& w, double gain) {
  const Fans fans = fans_of(w);
  normal(w, 0, gain * std::sqrt(2.0 / (fans.in + fans.out)));
}

}  // namespace lockstep::nn::init
