// How far the functions of one operand are from the truth, whether they stay in their ranges, and
// whether those that rise do so in f32, from each number to the next.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <optional>
#include <vector>

#include "kernels/support.h"
#include "kernels/truth.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/formulas/elementary.h"
#include "support/drill.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

/// The distance between neighbours of T at this number.
template <class T, class Wide>
Wide spacing(Wide number) {
  using Limits = std::numeric_limits<T>;
  const Wide size = std::max(std::fabs(number), Wide{Limits::min()});
  if constexpr (std::is_same_v<Wide, double>) {  // of billions: without calls
    constexpr std::uint64_t exponent_bits = 0x7ff0000000000000u;
    const double power = std::bit_cast<double>(std::bit_cast<std::uint64_t>(size) & exponent_bits);
    return power * static_cast<double>(Limits::epsilon());
  } else {
    int exponent = 0;
    (void)std::frexp(size, &exponent);
    return std::ldexp(Wide{1}, exponent - Limits::digits);
  }
}

/// |y - truth| in units of y's last place. Beyond the largest number, infinity is that number's
/// next.
template <class T, class Wide>
Wide error_of(T y, Wide truth) {
  const Wide largest = std::numeric_limits<T>::max(),
             infinite = std::numeric_limits<Wide>::infinity();
  if (std::isnan(truth) || std::isnan(y)) return std::isnan(truth) == std::isnan(y) ? 0 : infinite;
  static const Wide top = largest + spacing<T>(largest);
  const auto finite = [&](Wide number) { return std::clamp(number, -top, top); };
  if (std::isinf(truth)) return truth == Wide{y} ? 0 : infinite;
  return std::fabs(finite(y) - finite(truth)) / spacing<T>(std::clamp(truth, -largest, largest));
}

/// All numbers of f32 in ascending order: -NaN, -infinity, ..., -0, 0, ..., infinity, NaN.
float ascending(std::uint64_t place) {
  const auto bits = static_cast<std::uint32_t>(place);
  return std::bit_cast<float>(bits < 0x80000000u ? ~bits : bits ^ 0x80000000u);
}
std::uint64_t place_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return bits & 0x80000000u ? ~bits & 0xffffffffu : bits ^ 0x80000000u;
}

/// What was seen of a function.
struct Findings {
  const Function& function;
  double worst = 0;
  float at = 0;
  std::optional<float> out_of_range{}, against_direction{};

  /// Of numbers in ascending order.
  void add(const std::vector<float>& x, const std::vector<float>& y) {
    std::optional<float> before;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double truth = function.truth(x[i]), error = error_of<float, double>(y[i], truth);
      if (error > worst) worst = error, at = x[i];
      if (x[i] == 0 && std::signbit(truth) != std::signbit(y[i])) out_of_range = x[i];
      if (std::isnan(y[i])) continue;
      if (y[i] < function.low || y[i] > function.high) out_of_range = x[i];
      if (function.keeps_sign && y[i] != 0 && std::signbit(y[i]) != std::signbit(x[i]))
        out_of_range = x[i];
      if (before && (y[i] - *before) * function.direction < 0) against_direction = x[i];
      before = y[i];
    }
  }
};

std::vector<float> results(Unary op, const std::vector<float>& x) {
  const Tensor in = here(Tensor::of<float>({static_cast<std::int64_t>(x.size())}, x));
  const Tensor out = nan<float>(in.shape());
  unary(op, in, out);
  return out.to_vector<float>();
}

/// Every `stride`-th number, and what lies around powers of two and where formulas change.
std::vector<float> sample(std::uint64_t stride) {
  std::vector<std::uint64_t> places;
  for (std::uint64_t place = 0; place >> 32 == 0; place += stride) places.push_back(place);
  std::vector<float> corners = {0,      0.625f, 4,   10,     11,     15,     16,
                                17,     18,     20,  87.33f, 88.7f,  88.72f, 89,
                                103.9f, 104,    110, 1e6f,   1e-30f, 1e30f,  0.8813736f};
  for (int exponent = -149; exponent < 128; ++exponent)
    for (const double part : {1.0, 0.70710678118654752})  // also where log() takes the next power
      corners.push_back(static_cast<float>(std::ldexp(part, exponent)));
  for (int n = 0; n < 152; ++n)  // where exp() takes the next power of two
    corners.push_back(static_cast<float>((n + 0.5) * std::log(2.0)));
  for (const float corner : corners)
    for (const float side : {-corner, corner})
      for (std::uint64_t i = 0; i < 33; ++i) places.push_back(place_of(side) + i - 16);
  for (const double infinite : {-HUGE_VAL, HUGE_VAL})
    for (std::uint64_t i = 0; i < 9; ++i)
      places.push_back(place_of(static_cast<float>(infinite)) + i - 4);
  std::ranges::sort(places);
  places.erase(std::unique(places.begin(), places.end()), places.end());
  std::vector<float> numbers;
  for (const std::uint64_t place : places) numbers.push_back(ascending(place));
  return numbers;
}

/// What a machine without fused multiply-adds is allowed.
constexpr double slack = elementary::fused ? 1 : 1.5;

/// The error that a function takes over from CUDA's sine and cosine in f32, and erfc in f64 ("CUDA
/// C++ Programming Guide", Mathematical Functions).
double cuda_ulp(Unary op, bool wide) {
  if (on_cpu()) return 0;
  if (wide) return op == Unary::gelu ? 5 : 0;
  return op == Unary::sin || op == Unary::cos ? 2 : 0;
}

double pytorch_ulp(std::string_view name) {
  static const nlohmann::json numbers =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/accuracy/accuracy.json"));
  const auto& all = numbers["functions"];
  const auto found = all.find(name);
  return found == all.end() ? 0 : (*found)["ulp"].get<double>();
}

void print(const std::vector<Findings>& all) {
  fmt::print("| function | largest error, ulp | at | PyTorch's | in its range | monotone |\n");
  fmt::print("|---|---|---|---|---|---|\n");
  for (const Findings& seen : all) {
    const std::string name{name_of(seen.function.op)};
    const double theirs = pytorch_ulp(name);
    fmt::print("| `{}` | {:.2f} | {:.9g} | {} | {} | {} |\n", name, seen.worst, seen.at,
               theirs == 0       ? std::string("")
               : theirs > 1000.0 ? fmt::format("{:.0e}", theirs)
                                 : fmt::format("{:.2f}", theirs),
               seen.out_of_range ? fmt::format("no: {:.9g}", *seen.out_of_range) : "yes",
               seen.function.direction == 0 ? ""
               : seen.against_direction     ? fmt::format("no: {:.9g}", *seen.against_direction)
                                            : "yes");
  }
}

void check(const Findings& seen) {
  const std::string name{name_of(seen.function.op)};
  const double bound = std::max(seen.function.ulp * slack, cuda_ulp(seen.function.op, false));
  CHECK_MESSAGE(seen.worst <= bound, name, "(", seen.at, ") is ", seen.worst, " ulp off");
  CHECK_MESSAGE(!seen.out_of_range, name, " leaves its range at ", seen.out_of_range.value_or(0));
  CHECK_MESSAGE(!seen.against_direction, name, " turns at ", seen.against_direction.value_or(0));
}

}  // namespace

TEST_SUITE_BEGIN("not-cpu");  // millions of numbers; the release has them

TEST_CASE("accuracy: f32 functions are close to the truth, in their ranges, and monotone") {
#define LOCKSTEP_ONE(name, Formula) +1
  CHECK(functions().size() == std::size_t{0 LOCKSTEP_UNARY_OPERATIONS(LOCKSTEP_ONE)});
#undef LOCKSTEP_ONE
  const std::vector<float> x = sample(on_cpu() ? 4099 : 4099 * 64 + 1);
  for (const Function& function : functions()) {
    Findings seen{.function = function};
    seen.add(x, results(function.op, x));
    check(seen);
  }
}

TEST_CASE("accuracy: f64 functions are close to the truth") {
  std::vector<double> x = {0.0, -0.0, 1e-310, -1e-310, 4.9e-324, 709.78, 710, -708.5, -745.1, -746};
  std::uint64_t state = 1;
  for (int i = 0; i < 30000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x.push_back(std::bit_cast<double>(state));                                     // any number
    x.push_back(static_cast<double>(static_cast<std::int64_t>(state)) * 0x1p-58);  // up to 32
  }
  const Tensor in = here(Tensor::of<double>({static_cast<std::int64_t>(x.size())}, x));
  const Tensor out = nan<double>(in.shape());
  for (const Function& function : functions()) {
    unary(function.op, in, out);
    const std::vector<double> y = out.to_vector<double>();
    const std::string name{name_of(function.op)};
    // GELU's tail: an operand or a constant is rounded, and its error grows in the exponential.
    const auto allowed = [&](double at) {
      const double bound =
          std::max(std::max(function.ulp, 1.0) * slack, cuda_ulp(function.op, true));
      return (function.op == Unary::gelu || function.op == Unary::gelu_tanh) && at < 0
                 ? bound + 2 * at * at
                 : bound + 1;
    };
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double error = error_of<double, long double>(y[i], function.wide_truth(x[i]));
      if (error > static_cast<long double>(allowed(x[i])))
        FAIL_CHECK(name, "(", x[i], ") = ", y[i], " is ", static_cast<double>(error), " ulp off");
    }
  }
}

TEST_CASE("accuracy: gradients hold at both ends") {
  using truth::gelu_argument, truth::logistic, truth::normal_below;
  const std::vector<float> x = {
      -HUGE_VALF, -1e30f, -105,  -100, -90,  -88,  -50,  -20, -10,   -6, -2, -0.9f, -0.1f, -1e-40f,
      0,          1e-40f, 1e-6f, 0.3f, 0.8f, 1.5f, 5.5f, 9,   16.5f, 30, 80, 104,   1e30f};
  const auto gelu_tanh = [](double v) {
    const double w = gelu_argument(v),
                 slope = gelu_argument(1.0) / 1.044715 * (1 + 0.134145 * v * v);
    return logistic(w) + truth::times(v, logistic(w) * logistic(-w) * slope);
  };
  const std::vector<std::pair<Unary, std::function<double(double)>>> slopes = {
      {Unary::softplus, logistic<double>},
      {Unary::elu, [](double v) { return v > 0 ? 1 : std::exp(v); }},
      {Unary::erf, [](double v) { return 2 / std::sqrt(M_PI) * std::exp(-v * v); }},
      {Unary::silu,
       [](double v) { return logistic(v) + truth::times(v, logistic(v) * logistic(-v)); }},
      {Unary::gelu,
       [](double v) {
         return normal_below(v) + truth::times(v, std::exp(-v * v / 2) / std::sqrt(2 * M_PI));
       }},
      {Unary::gelu_tanh, gelu_tanh},
      {Unary::log, [](double v) { return 1 / v; }},
      {Unary::log1p, [](double v) { return 1 / (1 + v); }},
  };
  const Tensor in =
      of_values<float>({static_cast<std::int64_t>(x.size())}, Values(x.begin(), x.end()));
  const Tensor dy = nan<float>(in.shape()), dx = nan<float>(in.shape());
  dy.fill(1);
  for (const auto& [op, slope] : slopes) {
    CAPTURE(name_of(op));
    unary_backward(op, dy, in, dx, false);
    const std::vector<float> seen = dx.to_vector<float>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = std::isinf(x[i]) && std::isnan(slope(x[i])) ? 0 : slope(x[i]);
      CAPTURE(x[i]);
      // Relative also in the tails, where the exponent's rounding counts.
      const double scale = std::fabs(static_cast<double>(x[i]));
      const double close = 4e-7 * (1 + std::min(scale * scale, 300.0));
      if (std::isinf(expected) || std::fabs(expected) > 3.4e38)
        CHECK(std::isinf(seen[i]));
      else
        CHECK(std::fabs(seen[i] - expected) <=
              close * std::max(std::fabs(expected), std::fabs(expected) > 1e-3 ? 0.1 : 0.0) +
                  1e-42);  // subnormal numbers
    }
  }
}

TEST_SUITE_END();

TEST_CASE("drill accuracy: all f32 numbers, one thousandth in each run") {
  if (!std::getenv("LOCKSTEP_RUNS")) return;  // only when it is asked for: all take half an hour
  constexpr std::uint64_t block = 4096, blocks = (std::uint64_t{1} << 32) / block;
  std::vector<Findings> all;
  for (const Function& function : functions()) all.push_back({.function = function});
  drill(1, [&](std::uint64_t run) {
    for (std::uint64_t b = run % 1000; b < blocks; b += 1000) {
      std::vector<float> x;
      for (std::uint64_t i = 0; i <= block; ++i)  // the next block's first one, too
        x.push_back(ascending(std::min(b * block + i, (std::uint64_t{1} << 32) - 1)));
      for (Findings& seen : all) seen.add(x, results(seen.function.op, x));
    }
  });
  print(all);
  for (const Findings& seen : all) check(seen);
}
