#include <array>

#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/fingerprint_formulas.h"
#include "lockstep/kernels/formulas/optimizer_formulas.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

void add_to(const Fingerprint& fingerprint, std::uint64_t sum) {
  if (fingerprint.sum)
    *reinterpret_cast<std::uint64_t*>(fingerprint.sum->data<std::int64_t>()) += sum;
}

/// Calls update(value, gradient, a, b, c) for each element, of which the first n of `a`, `b` and
/// `c` are what is kept of it. Returns the fingerprint of what that leaves; 0 if nobody wants it.
/// The pointers of one item never overlap (__restrict): each names memory of its own.
template <int n, bool fingerprinted, class T, class Update>
std::uint64_t pass(T* __restrict value, const T* __restrict gradient, T* __restrict first,
                   T* __restrict second, T* __restrict third, std::int64_t count, std::uint32_t key,
                   const Update update) {
  std::uint64_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i, key += element_key_step<T>) {
    T a = 0, b = 0, c = 0;
    if constexpr (n > 0) a = first[i];
    if constexpr (n > 1) b = second[i];
    if constexpr (n > 2) c = third[i];
    update(value[i], gradient[i], a, b, c);
    if constexpr (n > 0) first[i] = a;
    if constexpr (n > 1) second[i] = b;
    if constexpr (n > 2) third[i] = c;
    if constexpr (fingerprinted) sum += fingerprint_term(key, value[i], a, b, c);
  }
  return sum;
}

/// The pass over an item that keeps the first n tensors of `kept`. Adds `extra` and a fingerprint.
template <int n, class T, class Item, class Update>
void update_item(const Item& item, std::array<const Tensor*, 3> kept, std::uint64_t extra,
                 const Update& update) {
  const auto data = [&](int k) {
    return k < n ? kept[static_cast<std::size_t>(k)]->template data<T>() : nullptr;
  };
  with_flag(item.fingerprint.sum != nullptr, [&](auto fingerprinted) {
    add_to(item.fingerprint,
           extra + pass<n, fingerprinted()>(
                       item.value.template data<T>(), item.gradient.template data<T>(), data(0),
                       data(1), data(2), item.value.numel(), item.fingerprint.salt, update));
  });
}

template <class T>
void sgd_item(const SgdItem& item, const SgdConfig& config) {
  const auto s = SgdScalars<T>::of(config, item.first);
  if (config.momentum != 0 && item.first) item.momentum.fill_zero();  // momentum * 0 + 1 * g is g
  const auto run = [&](auto momentum, auto decay, auto nesterov, auto maximize) {
    update_item<momentum() ? 1 : 0, T>(item, {&item.momentum}, 0,
                                       [=](T& value, T gradient, T& buffer, T&, T&) {
                                         constexpr SgdFlags flags{decay(), nesterov(), maximize()};
                                         if constexpr (momentum())
                                           sgd_momentum(value, gradient, buffer, s, flags);
                                         else
                                           sgd_plain(value, gradient, s, flags);
                                       });
  };
  const SgdFlags flags = SgdFlags::of(config);
  with_flags(run, config.momentum != 0, flags.decay, flags.nesterov, flags.maximize);
}

template <class T>
void adam_item(const AdamItem& item, const AdamConfig& config) {
  const std::int64_t step = ++*item.step.data<std::int64_t>();
  const std::uint32_t salt = item.fingerprint.salt;
  const auto s = AdamScalars<T>::of(config, step);
  const auto run = [&](auto decay, auto from_end, auto amsgrad, auto maximize) {
    update_item<amsgrad() ? 3 : 2, T>(
        item, {&item.mean, &item.variance, &item.max_variance}, count_term(salt, step),
        [=](T& value, T gradient, T& mean, T& variance, T& largest) {
          constexpr AdamFlags flags{decay(), from_end(), amsgrad(), maximize()};
          adam(value, gradient, mean, variance, largest, s, flags);
        });
  };
  const AdamFlags flags = AdamFlags::of(config);
  with_flags(run, flags.decay, flags.from_end, flags.amsgrad, flags.maximize);
}

template <class T>
void rmsprop_item(const RmspropItem& item, const RmspropConfig& config) {
  const auto s = RmspropScalars<T>::of(config);
  const auto run = [&](auto decay, auto from_end, auto centered, auto momentum, auto maximize) {
    // The momentum comes behind the mean, if there is one.
    update_item<1 + centered() + momentum(), T>(
        item, {&item.square, centered() ? &item.mean : &item.momentum, &item.momentum}, 0,
        [=](T& value, T gradient, T& square, T& second, T& third) {
          constexpr RmspropFlags flags{decay(), from_end(), centered(), momentum(), maximize()};
          rmsprop(value, gradient, square, second, centered() ? third : second, s, flags);
        });
  };
  const RmspropFlags flags = RmspropFlags::of(config);
  with_flags(run, flags.decay, flags.from_end, flags.centered, flags.momentum, flags.maximize);
}

template <class T>
void lion_item(const LionItem& item, const LionConfig& config) {
  const auto s = LionScalars<T>::of(config);
  with_flag(config.maximize, [&](auto maximize) {
    update_item<1, T>(item, {&item.momentum}, 0, [=](T& value, T gradient, T& momentum, T&, T&) {
      lion(value, gradient, momentum, s, maximize());
    });
  });
}

template <class T>
std::uint64_t fingerprint_of(std::span<const Tensor> tensors, std::uint32_t salt) {
  const std::int64_t n = tensors[0].numel();
  const T* a = tensors[0].data<T>();
  const T* b = tensors.size() > 1 ? tensors[1].data<T>() : nullptr;
  const T* c = tensors.size() > 2 ? tensors[2].data<T>() : nullptr;
  const T* d = tensors.size() > 3 ? tensors[3].data<T>() : nullptr;
  std::uint64_t sum = 0;
  const auto add = [&](auto... elements) {
    std::uint32_t key = salt;
    for (std::int64_t i = 0; i < n; ++i, key += element_key_step<T>)
      sum += fingerprint_term(key, elements[i]...);
  };
  if (d)
    add(a, b, c, d);
  else if (c)
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

void CpuBackend::rmsprop_step(std::span<const RmspropItem> items, const RmspropConfig& config) {
  for (const RmspropItem& item : items)
    visit_floating("rmsprop_step", item.value.dtype(),
                   [&](auto zero) { rmsprop_item<decltype(zero)>(item, config); });
}

void CpuBackend::lion_step(std::span<const LionItem> items, const LionConfig& config) {
  for (const LionItem& item : items)
    visit_floating("lion_step", item.value.dtype(),
                   [&](auto zero) { lion_item<decltype(zero)>(item, config); });
}

void CpuBackend::add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) {
  visit_floating("add_fingerprint", tensors[0].dtype(), [&](auto zero) {
    add_to(fingerprint, fingerprint_of<decltype(zero)>(tensors, fingerprint.salt));
  });
}

}  // namespace lockstep::kernels
