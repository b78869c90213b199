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

#include "lockstep/core/system/progress.h"

namespace lockstep {

void Generator::manual_seed(std::uint64_t seed) {
  StepGraph::refuse_in_recording("manual_seed");
  begin(seed);
}

void Generator::begin(std::uint64_t seed) {
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

// In parts whose places need no remainder, so that the compiler vectorizes.
void Generator::twist() {
  Progress::note();
  constexpr std::size_t n = 624, m = 397;
  const auto mixed = [this](std::size_t k, std::size_t next, std::size_t far) {
    const std::uint32_t y = (state_[k] & 0x80000000u) | (state_[next] & 0x7fffffffu);
    state_[k] = state_[far] ^ (y >> 1) ^ ((0u - (y & 1)) & 0x9908b0dfu);
  };
  for (std::size_t k = 0; k < n - m; ++k) mixed(k, k + 1, k + m);
  for (std::size_t k = n - m; k < n - 1; ++k) mixed(k, k + 1, k + m - n);
  mixed(n - 1, 0, m - 1);
  next_ = 0;
}

namespace {

std::uint32_t tempered(std::uint32_t y) {
  y ^= y >> 11;
  y ^= y << 7 & 0x9d2c5680u;
  y ^= y << 15 & 0xefc60000u;
  return y ^ y >> 18;
}

// f(i, output) for the next n outputs: of many at a time, from a state's words.
template <class Twist, class F>
void for_each_output(std::span<const std::uint32_t> state, std::size_t& next, const Twist& twist,
                     std::size_t n, const F& f) {
  for (std::size_t i = 0; i < n;) {
    if (next == state.size()) twist();
    const std::size_t count = std::min(n - i, state.size() - next);
    for (std::size_t k = 0; k < count; ++k) f(i + k, tempered(state[next + k]));
    i += count;
    next += count;
  }
}

float unit_of(std::uint32_t output) {
  return static_cast<float>(static_cast<std::int32_t>(output & 0xffffffu)) * 0x1p-24f;
}

}  // namespace

std::uint32_t Generator::random32() {
  if (next_ == state_.size()) twist();
  return tempered(state_[next_++]);
}

std::uint64_t Generator::random64() {
  const std::uint64_t high = random32();
  return high << 32 | random32();
}

template <>
float Generator::unit<float>() {
  return unit_of(random32());
}

template <>
double Generator::unit<double>() {
  return static_cast<double>(random64() & 0x1fffffffffffffu) * 0x1p-53;
}

namespace {

// With lanes, which numbers a sample gets would depend on the rank.
void before_draw(std::string_view call, const Tensor& out) {
  out.check_writable(call, "draw into another tensor");
  out.changed_by(call, out.row_origin() == RowOrigin() ? RowOrigin() : RowOrigin::mixed(call));
}

}  // namespace

void Generator::uniform(const Tensor& out, double from, double to) {
  StepGraph::refuse_in_recording("uniform");
  visit_floating("uniform", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T low = static_cast<T>(from);
    const T high = static_cast<T>(to);
    const T width = high - low;
    check<UsageError>(from <= to && std::isfinite(width),
                      "[uniform] there are no numbers from {} to {} in {}", from, to, out.dtype());
    const std::span<T> values = out.span<T>();
    before_draw("uniform", out);
    const auto put = [=](std::size_t i, T x) {
      const T value = std::fma(x, width, low);
      values[i] = value == high ? low : value;
    };
    const std::size_t n = values.size();
    if constexpr (sizeof(T) == 4)
      for_each_output(
          state_, next_, [this] { twist(); }, n,
          [&](std::size_t i, std::uint32_t output) { put(i, unit_of(output)); });
    else
      for (std::size_t i = 0; i < n; ++i) put(i, unit<T>());
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

namespace {

// log x, sin x and cos x in f64, to some 1e-12 of 1: more than enough for f32, and in one piece,
// which the compiler vectorizes. (Those of kernels/formulas would round to other bits than
// PyTorch's, whose stream this is.)

// Of x in [2^-24, 1], exact in f32. x = m 2^e with m in [sqrt(1/2), sqrt(2)), and log m = 2 artanh
// ((m - 1) / (m + 1)), a series.
double log_of_unit(float x) {
  constexpr std::int32_t sqrt_half = 0x3f3504f3;  // its bits
  const auto bits = std::bit_cast<std::int32_t>(x);
  const std::int32_t e = (bits - sqrt_half) >> 23;
  const auto m = static_cast<double>(std::bit_cast<float>(bits - e * (1 << 23)));
  const double s = (m - 1) / (m + 1), q = s * s;
  const double series =
      1 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * (1.0 / 11 + q / 13)))));
  return static_cast<double>(e) * std::numbers::ln2 + 2 * s * series;
}

// Of an angle in [0, 2 pi]: by quarter turns, and their Taylor series in [-pi / 4, pi / 4].
struct SineAndCosine {
  double sine, cosine;
};
SineAndCosine sine_and_cosine(double angle) {
  // NOLINTNEXTLINE: not negative
  const auto quarter = static_cast<std::int32_t>(angle * (2 / std::numbers::pi) + 0.5);
  const double x = angle - static_cast<double>(quarter) * (std::numbers::pi / 2), q = x * x;
  const double s =
      x *
      (1 + q * (-1.0 / 6 +
                q * (1.0 / 120 + q * (-1.0 / 5040 + q * (1.0 / 362880 + q * (-1.0 / 39916800 +
                                                                             q / 6227020800.0))))));
  const double c =
      1 + q * (-1.0 / 2 +
               q * (1.0 / 24 +
                    q * (-1.0 / 720 +
                         q * (1.0 / 40320 +
                              q * (-1.0 / 3628800 + q * (1.0 / 479001600 - q / 87178291200.0))))));
  const bool odd = (quarter & 1) != 0;
  const double sine = odd ? c : s, cosine = odd ? s : c;
  return {(quarter & 2) != 0 ? -sine : sine, ((quarter + 1) & 2) != 0 ? -cosine : cosine};
}

// 16 uniforms become normals, in place.
void turn(float* block, float mean, float stddev) {
  float sine[8], cosine[8], radius[8];
  for (int j = 0; j < 8; ++j)
    radius[j] = std::sqrt(-2.0f * static_cast<float>(log_of_unit(1 - block[j])));
  for (int j = 0; j < 8; ++j) {
    const float angle = static_cast<float>(2.0 * std::numbers::pi) * block[j + 8];
    const SineAndCosine both = sine_and_cosine(static_cast<double>(angle));
    sine[j] = static_cast<float>(both.sine), cosine[j] = static_cast<float>(both.cosine);
  }
  for (int j = 0; j < 8; ++j) {
    block[j] = std::fma(radius[j] * cosine[j], stddev, mean);
    block[j + 8] = std::fma(radius[j] * sine[j], stddev, mean);
  }
}

void turn(double* block, double mean, double stddev) {
  for (int j = 0; j < 8; ++j) {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - block[j]));
    const double angle = 2.0 * std::numbers::pi * block[j + 8];
    block[j] = std::fma(radius * std::cos(angle), stddev, mean);
    block[j + 8] = std::fma(radius * std::sin(angle), stddev, mean);
  }
}

}  // namespace

template <class T>
void Generator::large_normal(std::span<T> out, T mean, T stddev) {
  if constexpr (sizeof(T) == 4)
    for_each_output(
        state_, next_, [this] { twist(); }, out.size(),
        [&](std::size_t i, std::uint32_t output) { out[i] = unit_of(output); });
  else
    for (T& value : out) value = unit<T>();
  for (std::size_t i = 0; i + 16 <= out.size(); i += 16) turn(&out[i], mean, stddev);
  if (out.size() % 16 != 0) {
    const std::span<T> last = out.last(16);
    for (T& value : last) value = unit<T>();
    turn(last.data(), mean, stddev);
  }
}

void Generator::normal(const Tensor& out, double mean, double stddev) {
  StepGraph::refuse_in_recording("normal");
  check<UsageError>(stddev >= 0,
                    "[normal] the standard deviation must be 0 or more, got {} (mean {})", stddev,
                    mean);
  visit_floating("normal", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const std::span<T> values = out.span<T>();
    before_draw("normal", out);
    if (values.size() >= 16) {
      large_normal(values, static_cast<T>(mean), static_cast<T>(stddev));
    } else {
      for (T& value : values) value = static_cast<T>(small_normal() * stddev + mean);
    }
  });
}

void Generator::randint(std::int64_t low, std::int64_t high, const Tensor& out) {
  StepGraph::refuse_in_recording("randint");
  check<UsageError>(low < high, "[randint] there is no integer from {} to below {}", low, high);
  // Unsigned, since high - low may be beyond the largest i64.
  const auto base = static_cast<std::uint64_t>(low);
  const std::uint64_t range = static_cast<std::uint64_t>(high) - base;
  const bool wide = range >= std::uint64_t{1} << 28;
  const std::span<std::int64_t> values = out.span<std::int64_t>();
  before_draw("randint", out);
  if (wide) {
    for (std::int64_t& value : values) value = static_cast<std::int64_t>(random64() % range + base);
    return;
  }
  const auto short_range = static_cast<std::uint32_t>(range);
  for_each_output(
      state_, next_, [this] { twist(); }, values.size(),
      [&](std::size_t i, std::uint32_t output) {
        values[i] = static_cast<std::int64_t>(output % short_range + base);
      });
}

Tensor Generator::randperm(std::int64_t n) {
  StepGraph::refuse_in_recording("randperm");
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

Generator Generator::split() {
  StepGraph::refuse_in_recording("split");
  return Generator(random64());
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
