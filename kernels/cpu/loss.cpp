#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/cpu/rows.h"
#include "lockstep/kernels/cpu/sums.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

/// -log softmax(x)[label]; `saved`, unless null, becomes scale * (softmax(x) - onehot(label)).
template <class T>
double cross_entropy_row(const T* x, std::int64_t classes, std::int64_t label, T* saved, T scale) {
  const T largest = row_max(x, classes);
  const T shifted = x[label] - largest;  // read before `saved`, which may be x, is written
  const double total = row_exp_sum(x, classes, largest, saved);
  if (saved) {
    const T divisor = static_cast<T>(total);
    for (std::int64_t i = 0; i < classes; ++i) saved[i] /= divisor;
    saved[label] -= 1;
    for (std::int64_t i = 0; i < classes; ++i) saved[i] *= scale;
  }
  return std::log(total) - static_cast<double>(shifted);
}

/// of(begin, end) of all n terms: the tree of sums.h.
template <class Of>
double sum_pairwise(std::int64_t begin, std::int64_t n, const Of& of) {
  if (n <= one_after_the_other) return of(begin, begin + n);
  const std::int64_t cut = pairwise_cut(n);
  return sum_pairwise(begin, cut, of) + sum_pairwise(begin + cut, n - cut, of);
}

double mean(double total, std::int64_t n) { return n > 0 ? total / static_cast<double>(n) : 0; }

// What a loss makes of the difference of two elements: its terms, of packs, and its slope in f64.

struct SquaredDistance {
  template <class V>
  SumPack term(const V& a, const V& b) const {
    return (a.template cast<double>() - b.template cast<double>()).square();
  }
  static double slope(double d) { return 2 * d; }
};

/// Computed in the elements' own dtype.
struct HuberDistance {
  double delta;

  template <class V>
  SumPack term(const V& a, const V& b) const {
    using T = typename V::Scalar;
    const T half(0.5), largest = std::numeric_limits<T>::max();
    const T finite = delta < largest ? static_cast<T>(delta) : largest;  // 0 times it is 0
    const V size = (a - b).abs(), inner = size.min(finite);
    return (inner * (half * inner) + finite * (size - inner)).template cast<double>();
  }
  double slope(double d) const {  // NaN passes
    return d > delta ? delta : d < -delta ? -delta : d;
  }
};

template <class Distance>
void mean_distance(std::string_view name, const Distance& distance, const Tensor& x,
                   const Tensor& y, const Tensor& loss) {
  visit_floating(name, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto value = [&](const auto& a, const auto& b) { return distance.term(a, b); };
    const double total = sum_terms(x.numel(), value, x.data<T>(), y.data<T>());
    *loss.data<T>() = static_cast<T>(mean(total, x.numel()));
  });
}

template <class Distance>
void mean_distance_backward(std::string_view name, const Distance& distance, const Tensor& dloss,
                            const Tensor& x, const Tensor& y, const Tensor& dx, bool accumulate) {
  visit_floating(name, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *a = x.data<T>(), *b = y.data<T>();
    T* to = dx.data<T>();
    const double factor = mean(dloss.item(), x.numel());
    with_flag(accumulate, [&](auto add) {
      for (std::int64_t i = 0, n = x.numel(); i < n; ++i) {
        const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
        const T gradient = static_cast<T>(factor * distance.slope(d));
        to[i] = add ? to[i] + gradient : gradient;
      }
    });
  });
}

}  // namespace

void CpuBackend::cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor& loss,
                               const Tensor& saved, std::optional<double> dloss) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  visit_floating("cross_entropy", logits.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* x = logits.data<T>();
    const std::int64_t* label = labels.data<std::int64_t>();
    T* to = saved.defined() ? saved.data<T>() : nullptr;
    const T scale = static_cast<T>(dloss ? mean(static_cast<T>(*dloss), rows) : 1);
    const double total = sum_pairwise(0, rows, [&](std::int64_t begin, std::int64_t end) {
      double losses = 0;
      for (std::int64_t i = begin; i < end; ++i)
        losses += cross_entropy_row(x + i * classes, classes, label[i],
                                    to ? to + i * classes : nullptr, scale);
      return losses;
    });
    *loss.data<T>() = static_cast<T>(mean(total, rows));
  });
}

void CpuBackend::cross_entropy_backward(const Tensor& dloss, const Tensor& saved,
                                        const Tensor& dlogits, bool accumulate) {
  broadcast_to(saved, dlogits, accumulate, mean(dloss.item(), saved.size(0)));
}

void CpuBackend::mse(const Tensor& x, const Tensor& y, const Tensor& loss) {
  mean_distance("mse", SquaredDistance{}, x, y, loss);
}

void CpuBackend::mse_backward(const Tensor& dloss, const Tensor& x, const Tensor& y,
                              const Tensor& dx, bool accumulate) {
  mean_distance_backward("mse_backward", SquaredDistance{}, dloss, x, y, dx, accumulate);
}

void CpuBackend::huber(const Tensor& x, const Tensor& y, double delta, const Tensor& loss) {
  mean_distance("huber", HuberDistance{delta}, x, y, loss);
}

void CpuBackend::huber_backward(const Tensor& dloss, const Tensor& x, const Tensor& y, double delta,
                                const Tensor& dx, bool accumulate) {
  mean_distance_backward("huber_backward", HuberDistance{delta}, dloss, x, y, dx, accumulate);
}

}  // namespace lockstep::kernels
