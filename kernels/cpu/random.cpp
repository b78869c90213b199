#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/draws.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

/// Deals out the numbers that `numbers(block, values)` makes of each block of outputs: one to each
/// of as many elements, philox_threads apart.
template <class T, class F>
void fill_random(const PhiloxState& state, const Tensor& out, F numbers) {
  T* to = out.data<T>();
  const std::int64_t n = out.numel();
  for (std::int64_t round = 0, begin = 0; begin < n;
       ++round, begin += per_block<T> * philox_threads)
    for (std::int64_t s = 0; s < std::min(philox_threads, n - begin); ++s) {
      T values[per_block<T>];
      numbers(philox_block(state, round, s), values);
      for (int k = 0; k < per_block<T>; ++k)
        if (const std::int64_t i = begin + s + k * philox_threads; i < n) to[i] = values[k];
    }
}

}  // namespace

void CpuBackend::uniform(const PhiloxState& state, const Tensor& out, double low, double high) {
  visit_floating("uniform", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    fill_random<T>(state, out, [=](const PhiloxBlock& block, T(&values)[per_block<T>]) {
      for (int k = 0; k < per_block<T>; ++k)
        values[k] = uniform_between(block, k, static_cast<T>(low), static_cast<T>(high));
    });
  });
}

void CpuBackend::normal(const PhiloxState& state, const Tensor& out, double mean, double stddev) {
  visit_floating("normal", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T m = static_cast<T>(mean), s = static_cast<T>(stddev);
    fill_random<T>(state, out, [=](const PhiloxBlock& block, T(&values)[per_block<T>]) {
      for (int k = 0; k < per_block<T> / 2; ++k) {
        const Polar<T> polar = box_muller<T>(block, k);
        values[2 * k] = std::fma(polar.radius * std::sin(polar.angle), s, m);
        values[2 * k + 1] = std::fma(polar.radius * std::cos(polar.angle), s, m);
      }
    });
  });
}

void CpuBackend::dropout(const PhiloxState& state, const Tensor& x, double p, const Tensor& out,
                         const Tensor& mask) {
  visit_floating("dropout", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data<T>();
    T* to = out.data<T>();
    std::uint8_t* kept = mask.data<std::uint8_t>();
    const float threshold = keep_below(p);
    const T scale = keep_scale<T>(p);
    for (std::int64_t group = 0, i = 0; i < x.numel(); ++group) {
      const PhiloxBlock block = philox_block(state, group / philox_threads, group % philox_threads);
      for (int k = 0; k < 4 && i < x.numel(); ++k, ++i) {
        kept[i] = keeps(block, k, threshold);
        to[i] = from[i] * (kept[i] ? scale : T(0));
      }
    }
  });
}

void CpuBackend::dropout_backward(const Tensor& dy, const Tensor& mask, double p, const Tensor& dx,
                                  bool accumulate) {
  visit_floating("dropout_backward", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = dy.data<T>();
    T* to = dx.data<T>();
    const std::uint8_t* kept = mask.data<std::uint8_t>();
    const T scale = keep_scale<T>(p);
    with_flag(accumulate, [&](auto add) {
      for (std::int64_t i = 0; i < dy.numel(); ++i) {
        const T gradient = from[i] * (kept[i] ? scale : T(0));
        if constexpr (add)
          to[i] += gradient;
        else
          to[i] = gradient;
      }
    });
  });
}

}  // namespace lockstep::kernels
