#include "lockstep/nn/initialize.h"

#include <Eigen/QR>
#include <algorithm>
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

namespace {
// In f64, whatever the dtype: Eigen's templates are long to compile, so there is one instance.
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The Q of QR, with the signs that make R's diagonal positive: Q is then drawn uniformly (Mezzadri
/// 2007, section 5).
Matrix orthogonal_columns(const Matrix& tall) {
  const Eigen::HouseholderQR<Matrix> qr(tall);
  Matrix q = qr.householderQ() * Matrix::Identity(tall.rows(), tall.cols());
  for (std::int64_t k = 0; k < tall.cols(); ++k)
    if (qr.matrixQR()(k, k) < 0) q.col(k) *= -1;
  return q;
}
}  // namespace

void orthogonal(const Tensor& w, double gain) {
  fans_of(w);  // refuses what is no matrix
  const std::int64_t rows = w.size(0), cols = w.numel() / rows;
  const Tensor host = Tensor::empty({rows, cols}, w.dtype());
  normal(host, 0, 1);
  visit_floating("orthogonal", w.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* values = host.data<T>();
    Matrix drawn(rows, cols);
    std::copy_n(values, host.numel(), drawn.data());
    const Matrix q = rows < cols ? Matrix(orthogonal_columns(drawn.transpose()).transpose())
                                 : orthogonal_columns(drawn);
    for (std::int64_t i = 0; i < host.numel(); ++i) values[i] = static_cast<T>(gain * q.data()[i]);
  });
  w.copy_from(host.view(w.shape()));
}

}  // namespace lockstep::nn::init
