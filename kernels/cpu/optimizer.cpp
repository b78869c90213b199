#include <algorithm>

#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/fingerprint_formulas.h"
#include "lockstep/kernels/formulas/optimizer_formulas.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

/// What a pass has seen: the sum of the terms, and the largest magnitude of the parameter.
template <class T>
struct Seen {
  std::uint64_t sum = 0;
  decltype(magnitude_bits(T())) largest = 0;

  void add(std::uint32_t key, T value, T second, T third, T fourth) {
    sum += fingerprint_term(key, value, second, third, fourth);
  }
  void look_at(T value) { largest = std::max(largest, magnitude_bits(value)); }
  void add_to(const Fingerprint& fingerprint) const {
    if (!fingerprint.sum) return;
    auto* to = reinterpret_cast<std::uint64_t*>(fingerprint.sum->data<std::int64_t>());
    if (fingerprint.terms) to[0] += sum;
    if (!is_finite_magnitude(largest)) ++to[1];
  }
};

/// Calls update(value, gradient, a, b, c) for each element, of which the first n of `a`, `b` and
/// `c` are what is kept of it. Returns what it has seen, the sum only if it is `fingerprinted`.
/// The pointers of one item never overlap (__restrict): each names other memory. A formula that is
/// called, not written out here (flatten), would keep the loop from being vectorized.
template <int n, bool fingerprinted, class T, class Update>
[[gnu::flatten]] Seen<T> pass(T* __restrict value, const T* __restrict gradient,
                              T* __restrict first, T* __restrict second, T* __restrict third,
                              std::int64_t count, std::uint32_t key, const Update update) {
  Seen<T> seen;
  for (std::int64_t i = 0; i < count; ++i, key += element_key_step<T>) {
    T a = 0, b = 0, c = 0;
    if constexpr (n > 0) a = first[i];
    if constexpr (n > 1) b = second[i];
    if constexpr (n > 2) c = third[i];
    update(value[i], gradient[i], a, b, c);
    if constexpr (n > 0) first[i] = a;
    if constexpr (n > 1) second[i] = b;
    if constexpr (n > 2) third[i] = c;
    if constexpr (fingerprinted) seen.add(key, value[i], a, b, c);
    seen.look_at(value[i]);
  }
  return seen;
}

/// A step by Formula<T> on an item that has these flags; the `number` of the step if the formula
/// counts them, which is in the fingerprint, too.
template <template <class> class Formula, class Item, class Config, class... Number>
void update_item(const Item& item, const Config& config, unsigned flags, Number... number) {
  visit_floating("step", item.value.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto formula = Formula<T>::of(config, number...);
    const auto salt = item.fingerprint.salt;
    T* kept[3] = {};
    int n = 0;
    visit_kept(item, config, [&](std::string_view, const Tensor& tensor, bool is_kept) {
      if (is_kept) kept[n++] = tensor.template data<T>();
    });
    const auto run = [&](auto on, auto fingerprinted) {
      Seen<T> seen = pass<kept_with<Formula<T>>(on()), fingerprinted()>(
          item.value.template data<T>(), item.gradient.template data<T>(), kept[0], kept[1],
          kept[2], item.value.numel(), salt,
          [=](T& value, T gradient, T& a, T& b, T& c) { formula(value, gradient, a, b, c, on()); });
      seen.sum = (count_term(salt, number) + ... + seen.sum);
      seen.add_to(item.fingerprint);
    };
    with_flags<Formula<T>::flags>(flags, [&](auto on) {
      with_flag(item.fingerprint.sum && item.fingerprint.terms,
                [&](auto printed) { run(on, printed); });
    });
  });
}

/// Of `more` + 1 tensors.
template <unsigned more, class T>
Seen<T> fingerprint_of(const T* const (&data)[4], std::int64_t count, std::uint32_t key) {
  Seen<T> seen;
  for (std::int64_t i = 0; i < count; ++i, key += element_key_step<T>) {
    seen.add(key, data[0][i], more > 0 ? data[1][i] : 0, more > 1 ? data[2][i] : 0,
             more > 2 ? data[3][i] : 0);
    seen.look_at(data[0][i]);
  }
  return seen;
}

}  // namespace

void CpuBackend::sgd_step(std::span<const SgdItem> items, const SgdConfig& config) {
  for (const SgdItem& item : items)
    update_item<Sgd>(item, config, flags_of(config) | when(item.first, first_step));
}

void CpuBackend::adam_step(std::span<const AdamItem> items, const AdamConfig& config) {
  for (const AdamItem& item : items)
    update_item<Adam>(item, config, flags_of(config), ++*item.step.data<std::int64_t>());
}

void CpuBackend::rmsprop_step(std::span<const RmspropItem> items, const RmspropConfig& config) {
  for (const RmspropItem& item : items) update_item<Rmsprop>(item, config, flags_of(config));
}

void CpuBackend::lion_step(std::span<const LionItem> items, const LionConfig& config) {
  for (const LionItem& item : items) update_item<Lion>(item, config, flags_of(config));
}

void CpuBackend::add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) {
  visit_floating("add_fingerprint", tensors[0].dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* data[4] = {};
    for (std::size_t k = 0; k < tensors.size(); ++k) data[k] = tensors[k].data<T>();
    const auto more = static_cast<unsigned>(tensors.size() - 1);
    with_flags<3>(more, [&](auto constant) {
      fingerprint_of<constant()>(data, tensors[0].numel(), fingerprint.salt).add_to(fingerprint);
    });
  });
}

}  // namespace lockstep::kernels
