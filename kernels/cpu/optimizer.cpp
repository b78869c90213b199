#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/fingerprint_formulas.h"
#include "lockstep/kernels/formulas/optimizer_formulas.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

// The pointers of one item never overlap (__restrict): each names memory of its own. What the loops
// return is the fingerprint of what they leave, or 0 if nobody wants it.

/// The flags that are constants within a loop.
template <bool decay_, bool variant_, bool fingerprinted_>
struct Flags {
  static constexpr bool decay = decay_;
  static constexpr bool variant = variant_;  // Nesterov's momentum; Adam's lerp from the end
  static constexpr bool fingerprinted = fingerprinted_;
};

template <class F>
void with_flags(bool decay, bool variant, bool fingerprinted, F&& f) {
  with_flag(decay, [&](auto d) {
    with_flag(variant, [&](auto v) {
      with_flag(fingerprinted, [&](auto p) { f(Flags<d(), v(), p()>{}); });
    });
  });
}

template <class T, class Flags>
std::uint64_t sgd_plain_loop(T* __restrict value, const T* __restrict gradient, std::int64_t n,
                             const SgdScalars<T> s, std::uint32_t key) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i, key += element_key_step<T>) {
    sgd_plain(value[i], gradient[i], s, Flags::decay);
    if constexpr (Flags::fingerprinted) sum += fingerprint_term(key, value[i]);
  }
  return sum;
}

template <class T, class Flags>
std::uint64_t sgd_momentum_loop(T* __restrict value, const T* __restrict gradient,
                                T* __restrict buffer, std::int64_t n, const SgdScalars<T> s,
                                std::uint32_t key) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i, key += element_key_step<T>) {
    sgd_momentum(value[i], gradient[i], buffer[i], s, Flags::decay, Flags::variant);
    if constexpr (Flags::fingerprinted) sum += fingerprint_term(key, value[i], buffer[i]);
  }
  return sum;
}

void add_to(const Fingerprint& fingerprint, std::uint64_t sum) {
  if (fingerprint.sum)
    *reinterpret_cast<std::uint64_t*>(fingerprint.sum->data<std::int64_t>()) += sum;
}

template <class T>
void sgd_item(const SgdItem& item, const SgdConfig& config) {
  T* value = item.value.data<T>();
  const T* gradient = item.gradient.data<T>();
  const std::int64_t n = item.value.numel();
  const std::uint32_t salt = item.fingerprint.salt;
  const auto scalars = SgdScalars<T>::of(config, item.first);
  if (config.momentum != 0 && item.first) item.momentum.fill_zero();  // momentum * 0 + 1 * g is g
  with_flags(config.weight_decay != 0, config.nesterov, item.fingerprint.sum != nullptr,
             [&](auto flags) {
               using Flags = decltype(flags);
               add_to(item.fingerprint,
                      config.momentum == 0
                          ? sgd_plain_loop<T, Flags>(value, gradient, n, scalars, salt)
                          : sgd_momentum_loop<T, Flags>(value, gradient, item.momentum.data<T>(), n,
                                                        scalars, salt));
             });
}

template <class T, class Flags>
std::uint64_t adam_loop(T* __restrict value, const T* __restrict gradient, T* __restrict mean,
                        T* __restrict variance, std::int64_t n, const AdamScalars<T> s,
                        std::uint32_t key) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < n; ++i, key += element_key_step<T>) {
    adam(value[i], gradient[i], mean[i], variance[i], s, Flags::decay, Flags::variant);
    if constexpr (Flags::fingerprinted)
      sum += fingerprint_term(key, value[i], mean[i], variance[i]);
  }
  return sum;
}

template <class T>
void adam_item(const AdamItem& item, const AdamConfig& config) {
  const std::int64_t step = ++*item.step.data<std::int64_t>();
  const std::uint32_t salt = item.fingerprint.salt;
  const auto scalars = AdamScalars<T>::of(config, step);
  with_flags(adam_decays_gradient(config), adam_lerps_from_end(config),
             item.fingerprint.sum != nullptr, [&](auto flags) {
               add_to(item.fingerprint,
                      count_term(salt, step) + adam_loop<T, decltype(flags)>(
                                                   item.value.data<T>(), item.gradient.data<T>(),
                                                   item.mean.data<T>(), item.variance.data<T>(),
                                                   item.value.numel(), scalars, salt));
             });
}

template <class T>
std::uint64_t fingerprint_of(std::span<const Tensor> tensors, std::uint32_t salt) {
  const std::int64_t n = tensors[0].numel();
  const T* a = tensors[0].data<T>();
  const T* b = tensors.size() > 1 ? tensors[1].data<T>() : nullptr;
  const T* c = tensors.size() > 2 ? tensors[2].data<T>() : nullptr;
  std::uint64_t sum = 0;
  const auto add = [&](auto... elements) {
    std::uint32_t key = salt;
    for (std::int64_t i = 0; i < n; ++i, key += element_key_step<T>)
      sum += fingerprint_term(key, elements[i]...);
  };
  if (c)
    add(a, b, c);
  else if (b)
    add(a, b);
  else
    add(a);
  return sum;
}

}  // namespace

void CpuBackend::sgd_step(std::span<const SgdItem> items, const SgdConfig& config) {
  for (const SgdItem& item : items)
    visit_floating("sgd_step", item.value.dtype(),
                   [&](auto zero) { sgd_item<decltype(zero)>(item, config); });
}

void CpuBackend::adam_step(std::span<const AdamItem> items, const AdamConfig& config) {
  for (const AdamItem& item : items)
    visit_floating("adam_step", item.value.dtype(),
                   [&](auto zero) { adam_item<decltype(zero)>(item, config); });
}

void CpuBackend::add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) {
  visit_floating("add_fingerprint", tensors[0].dtype(), [&](auto zero) {
    add_to(fingerprint, fingerprint_of<decltype(zero)>(tensors, fingerprint.salt));
  });
}

}  // namespace lockstep::kernels
