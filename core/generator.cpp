// Compiled with -ffp-contract=off: where a multiply-add is fused is part of the stream, and written
// out, so the compiler may not choose.
#include "lockstep/core/generator.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

namespace lockstep {

void Generator::manual_seed(std::uint64_t seed) {
  state_[0] = static_cast<std::uint32_t>(seed);
  for (std::uint32_t k = 1; k < state_.size(); ++k)
    state_[k] = 1812433253u * (state_[k - 1] ^ state_[k - 1] >> 30) + k;
  next_ = state_.size();
  seed_ = seed;
  cached_normal_.reset();
}

// The paper's recurrence: element k + 624 is made of the elements k, k + 1 and k + 397.
// The words, the next one, the seed, and whether a normal is cached, and which.
Tensor Generator::state() const {
  const Tensor state = Tensor::zeros({words + 4}, DType::i64);
  std::int64_t* at = std::ranges::copy(state_, state.data<std::int64_t>()).out;
  *at++ = static_cast<std::int64_t>(next_);
  *at++ = static_cast<std::int64_t>(seed_);
  *at++ = cached_normal_.has_value();
  *at = std::bit_cast<std::int64_t>(cached_normal_.value_or(0));
  return state;
}

void Generator::set_state(const Tensor& state) {
  check<UsageError>(
      state.defined() && state.dtype() == DType::i64 && state.shape() == Shape{words + 4},
      "[set_state] that is no state of a generator");
  const auto values = state.to_vector<std::int64_t>();
  const auto in_range = [](std::int64_t word) { return word >> 32 == 0; };
  check<UsageError>(std::all_of(values.begin(), values.begin() + words, in_range) &&
                        values[words] >= 0 && values[words] <= words,
                    "[set_state] that is no state of a generator");
  std::transform(values.begin(), values.begin() + words, state_.begin(),
                 [](std::int64_t word) { return static_cast<std::uint32_t>(word); });
  next_ = static_cast<std::size_t>(values[words]);
  seed_ = static_cast<std::uint64_t>(values[words + 1]);
  cached_normal_ = std::nullopt;
  if (values[words + 2] != 0) cached_normal_ = std::bit_cast<double>(values[words + 3]);
}

void Generator::twist() {
  constexpr std::size_t n = 624, m = 397;
  for (std::size_t k = 0; k < n; ++k) {
    const std::uint32_t y = (state_[k] & 0x80000000u) | (state_[(k + 1) % n] & 0x7fffffffu);
    state_[k] = state_[(k + m) % n] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0u);
  }
  next_ = 0;
}

std::uint32_t Generator::random32() {
  if (next_ == state_.size()) twist();
  std::uint32_t y = state_[next_++];
  y ^= y >> 11;
  y ^= y << 7 & 0x9d2c5680u;
  y ^= y << 15 & 0xefc60000u;
  return y ^ y >> 18;
}

std::uint64_t Generator::random64() {
  const std::uint64_t high = random32();
  return high << 32 | random32();
}

template <>
float Generator::unit<float>() {
  return static_cast<float>(random32() & 0xffffffu) * 0x1p-24f;
}

template <>
double Generator::unit<double>() {
  return static_cast<double>(random64() & 0x1fffffffffffffu) * 0x1p-53;
}

void Generator::uniform(const Tensor& out, double from, double to) {
  visit_floating("uniform", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T low = static_cast<T>(from);
    const T high = static_cast<T>(to);
    const T width = high - low;
    check<UsageError>(from <= to && std::isfinite(width),
                      "[uniform] there are no numbers from {} to {} in {}", from, to, out.dtype());
    for (T& value : out.span<T>()) {
      value = std::fma(unit<T>(), width, low);
      if (value == high) value = low;
    }
  });
}

// Two values at a time; the second waits for the next call.
double Generator::small_normal() {
  if (cached_normal_) return *std::exchange(cached_normal_, std::nullopt);
  const double u1 = unit<double>();
  const double u2 = unit<double>();
  const double radius = std::sqrt(-2.0 * std::log1p(-u2));
  const double angle = 2.0 * std::numbers::pi * u1;
  cached_normal_ = radius * std::sin(angle);
  return radius * std::cos(angle);
}

template <class T>
void Generator::large_normal(std::span<T> out, T mean, T stddev) {
  const auto turn = [mean, stddev](std::span<T> block) {
    for (std::size_t j = 0; j < 8; ++j) {
      const T radius = std::sqrt(T{-2} * std::log(T{1} - block[j]));
      const T angle = static_cast<T>(2.0 * std::numbers::pi) * block[j + 8];
      block[j] = std::fma(radius * std::cos(angle), stddev, mean);
      block[j + 8] = std::fma(radius * std::sin(angle), stddev, mean);
    }
  };
  for (T& value : out) value = unit<T>();
  for (std::size_t i = 0; i + 16 <= out.size(); i += 16) turn(out.subspan(i, 16));
  if (out.size() % 16 != 0) {
    const std::span<T> last = out.last(16);
    for (T& value : last) value = unit<T>();
    turn(last);
  }
}

void Generator::normal(const Tensor& out, double mean, double stddev) {
  check<UsageError>(stddev >= 0,
                    "[normal] the standard deviation must be 0 or more, got {} (mean {})", stddev,
                    mean);
  visit_floating("normal", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if (out.numel() >= 16) {
      large_normal(out.span<T>(), static_cast<T>(mean), static_cast<T>(stddev));
    } else {
      for (T& value : out.span<T>()) value = static_cast<T>(small_normal() * stddev + mean);
    }
  });
}

void Generator::randint(std::int64_t low, std::int64_t high, const Tensor& out) {
  check<UsageError>(low < high, "[randint] there is no integer from {} to below {}", low, high);
  // Unsigned, since high - low may be beyond the largest i64.
  const auto base = static_cast<std::uint64_t>(low);
  const std::uint64_t range = static_cast<std::uint64_t>(high) - base;
  const bool wide = range >= std::uint64_t{1} << 28;
  for (std::int64_t& value : out.span<std::int64_t>())
    value = static_cast<std::int64_t>((wide ? random64() : random32()) % range + base);
}

Tensor Generator::randperm(std::int64_t n) {
  check<UsageError>(n >= 0, "[randperm] the number of elements must be 0 or more, got {}", n);
  Tensor result = Tensor::empty({n}, DType::i64);
  const std::span<std::int64_t> p = result.span<std::int64_t>();
  if (n < std::numeric_limits<std::uint32_t>::max() / 20) {
    std::iota(p.begin(), p.end(), std::int64_t{0});
    for (std::size_t i = 0; i + 1 < p.size(); ++i)
      std::swap(p[i], p[i + random32() % (p.size() - i)]);
  } else {
    for (std::size_t i = 0; i < p.size(); ++i) {
      const std::size_t z = random64() % (i + 1);
      p[i] = p[z];
      p[z] = static_cast<std::int64_t>(i);
    }
  }
  return result;
}

Generator& default_generator() {
  thread_local Generator generator;
  return generator;
}

PhiloxGenerator& default_philox() {
  thread_local PhiloxGenerator generator{Generator::default_seed};
  return generator;
}

void manual_seed(std::uint64_t seed) {
  default_generator().manual_seed(seed);
  default_philox().manual_seed(seed);
}

}  // namespace lockstep
