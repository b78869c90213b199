#include "lockstep/nn/initialize.h"

#include <Eigen/QR>
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

/// The generator writes to the cpu alone.
template <class Draw>
void drawn(const Tensor& w, const Draw& draw) {
  const Tensor host = w.device() == Device{} ? w : Tensor::empty(w.shape(), w.dtype());
  draw(host);
  if (host.raw() != w.raw()) w.copy_from(host);
}

}  // namespace

void uniform(const Tensor& w, double low, double high) {
  drawn(w, [&](const Tensor& host) { default_generator().uniform(host, low, high); });
}
void normal(const Tensor& w, double mean, double stddev) {
  drawn(w, [&](const Tensor& host) { default_generator().normal(host, mean, stddev); });
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

void orthogonal(const Tensor& w, double gain) {
  fans_of(w);  // refuses what is no matrix
  const std::int64_t rows = w.size(0), cols = w.numel() / rows;
  const Tensor host = Tensor::empty({rows, cols}, w.dtype());
  normal(host, 0, 1);
  visit_floating("orthogonal", w.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    Eigen::Map<Matrix> values(host.data<T>(), rows, cols);
    const bool wide = rows < cols;  // then its rows are orthogonal
    const Matrix tall = wide ? Matrix(values.transpose()) : Matrix(values);
    const Eigen::HouseholderQR<Matrix> qr(tall);
    Matrix q = qr.householderQ() * Matrix::Identity(tall.rows(), tall.cols());
    for (std::int64_t k = 0; k < tall.cols(); ++k)
      q.col(k) *= static_cast<T>(qr.matrixQR()(k, k) < 0 ? -gain : gain);
    values = wide ? Matrix(q.transpose()) : q;
  });
  w.copy_from(host.view(w.shape()));
}

}  // namespace lockstep::nn::init
