// The everyday expressions of expressions.inc, against what PyTorch gives for them.

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/autograd/gradcheck.h"
#include "lockstep/lockstep.h"
#include "support/device.h"

using namespace lockstep;

namespace {

/// As make_expressions.py draws it.
double draw(std::int64_t seed, std::int64_t e) {
  return static_cast<double>((seed * 7919 + e * 104729 + 12345) % 10007) / 10007;
}

Tensor floating(std::int64_t seed, const Shape& shape, double low, double width) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  for (std::int64_t e = 0; e < result.numel(); ++e)
    result.data<double>()[e] = low + width * draw(seed, e);
  return result.to(test::test_device());
}

Tensor whole(std::int64_t seed, const Shape& shape, std::int64_t end) {
  const Tensor result = Tensor::empty(shape, DType::i64);
  for (std::int64_t e = 0; e < result.numel(); ++e)
    result.data<std::int64_t>()[e] =
        static_cast<std::int64_t>(draw(seed, e) * static_cast<double>(end));
  return result.to(test::test_device());
}

Tensor small_integers(std::int64_t seed, const Shape& shape, bool without_zero) {
  const Tensor result = Tensor::empty(shape, DType::i64);
  for (std::int64_t e = 0; e < result.numel(); ++e) {
    const auto value = static_cast<std::int64_t>(draw(seed, e) * 15) - 7;
    result.data<std::int64_t>()[e] = value == 0 && without_zero ? 3 : value;
  }
  return result.to(test::test_device());
}

Tensor mask_of(const Shape& shape) {
  const Tensor result = Tensor::empty(shape, DType::u8);
  for (std::int64_t e = 0; e < result.numel(); ++e)
    result.data<std::uint8_t>()[e] = draw(40, e) < 0.5;
  return result.to(test::test_device());
}

/// The operands of r rows and c columns; the floating ones want gradients.
struct Operands {
  Operands(std::int64_t r, std::int64_t c, DType dtype = DType::f64)
      : l(whole(20, {r}, c)),
        i(whole(21, {4}, r)),
        j(whole(22, {r, 2}, c)),
        n(small_integers(30, {r, c}, false)),
        d(small_integers(31, {r, c}, true)),
        m(mask_of({r, c})) {
    const std::vector<std::pair<std::string, Shape>> shapes = {
        {"x", {r, c}}, {"y", {r, c}}, {"p", {r, c}}, {"q", {r, c}},    {"v", {c}},       {"u", {c}},
        {"w", {c, 4}}, {"k", {4, c}}, {"b", {4}},    {"t", {2, r, c}}, {"s", {2, c, r}}, {"z", {}}};
    for (std::size_t seed = 0; seed < shapes.size(); ++seed) {
      const auto& [name, shape] = shapes[seed];
      const bool positive = name == "p" || name == "q";
      const Tensor value =
          floating(static_cast<std::int64_t>(seed), shape, positive ? 0.3 : -2, positive ? 1.2 : 4);
      parameters.emplace(name, Parameter(cast(value, dtype), name));
      tensors.emplace(name, parameters.at(name));
    }
  }
  Tensor operator[](const char* name) const { return tensors.at(name); }

  std::map<std::string, Parameter> parameters{};
  std::map<std::string, Tensor> tensors{};  // what the expressions take: the parameters, at first
  Tensor l, i, j, n, d, m;
};

struct Expression {
  std::string text;  // PyTorch's
  bool mean;         // over nothing it is 0 here, NaN there
  std::function<Tensor(const Operands&)> ours;
};

std::vector<Expression> expressions() {
  std::vector<Expression> table;
#define LOCKSTEP_EXPRESSION(is_mean, text, ...)                                                    \
  table.push_back({text, is_mean, [](const Operands& o) -> Tensor {                                \
                     [[maybe_unused]] const Tensor x = o["x"], y = o["y"], p = o["p"], q = o["q"], \
                                                   v = o["v"], u = o["u"], w = o["w"], k = o["k"], \
                                                   b = o["b"], t = o["t"], s = o["s"], z = o["z"]; \
                     [[maybe_unused]] const Tensor &l = o.l, &i = o.i, &j = o.j, &n = o.n,         \
                                                   &d = o.d, &m = o.m;                             \
                     return __VA_ARGS__;                                                           \
                   }});
#define SAME(text, ...) LOCKSTEP_EXPRESSION(false, text, __VA_ARGS__)
#define MEAN(text, ...) LOCKSTEP_EXPRESSION(true, text, __VA_ARGS__)
#include "vocabulary/expressions.inc"
#undef MEAN
#undef SAME
#undef LOCKSTEP_EXPRESSION
  return table;
}

double number(const nlohmann::json& element) {
  if (element.is_number()) return element.get<double>();
  if (element == "nan") return std::nan("");
  return element == "inf" ? HUGE_VAL : -HUGE_VAL;
}

std::vector<double> numbers(const Tensor& tensor) {
  const Tensor host = cast(tensor.detach().to(Device{}), DType::f64);
  return host.to_vector<double>();
}

std::string dtype_of_torch(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::f64: return "float64";
    case DType::i64: return "int64";
    default: return "uint8";
  }
}

void check_elements(const std::vector<double>& mine, const nlohmann::json& right, bool mean,
                    double tolerance) {
  REQUIRE(mine.size() == right.size());
  for (std::size_t e = 0; e < mine.size(); ++e) {
    const double expected = number(right[e]);
    CAPTURE(e);
    CAPTURE(mine[e]);
    CAPTURE(expected);
    const double scale = std::max(1.0, std::abs(expected));
    bool same = std::abs(mine[e] - expected) <= tolerance * scale;
    if (std::isinf(expected)) same = mine[e] == expected;
    if (std::isnan(expected)) same = mean ? mine[e] == 0 : std::isnan(mine[e]);
    CHECK(same);
  }
}

constexpr double f32_tolerance = 1e-5;  // of an element, or of 1 if it is smaller

/// Whether an expression works on operands of f32: those that name f64 themselves mix the two.
bool takes_f32(const Expression& expression) {
  return expression.text.find("float64") == std::string::npos;
}

void check_case(const Expression& expression, const nlohmann::json& right, DType dtype) {
  const std::int64_t r = right["shape"][0], c = right["shape"][1];
  CAPTURE(expression.text);
  CAPTURE(r);
  CAPTURE(c);
  const Operands operands(r, c, dtype);
  if (right.contains("throws")) {
    // On a GPU what only the elements show is told at the next wait.
    CHECK_THROWS_AS(static_cast<void>(expression.ours(operands).to(Device{})), Error);
    return;
  }
  if (expression.mean && c == 0 && right["value"]["elements"] == nlohmann::json{"nan"}) {
    // Of no classes there is no label either: we may refuse where PyTorch has a mean over nothing.
    try {
      static_cast<void>(expression.ours(operands).to(Device{}));
    } catch (const DataError&) {
      return;
    }
  }
  Tape tape;
  const Tensor value = expression.ours(operands);
  const bool same_dtype = dtype == DType::f64 || value.dtype() != DType::f32;
  if (same_dtype)
    CHECK(dtype_of_torch(value.dtype()) == right["value"]["dtype"].get<std::string>());
  CHECK(std::vector<std::int64_t>(value.shape().begin(), value.shape().end()) ==
        right["value"]["shape"].get<std::vector<std::int64_t>>());
  const double tolerance = dtype == DType::f32           ? f32_tolerance
                           : value.dtype() == DType::f32 ? 1e-6
                                                         : 1e-12;
  check_elements(numbers(value), right["value"]["elements"], expression.mean, tolerance);
  if (!right.contains("gradients")) return;
  const Tensor wide = reshape(cast(value, DType::f64), {value.numel()});
  const Tensor k = Tensor::empty({value.numel()}, DType::f64);
  for (std::int64_t e = 0; e < k.numel(); ++e)
    k.data<double>()[e] = std::cos(1 + 0.7 * static_cast<double>(e));
  tape.backward(sum(wide * k.to(test::test_device())));
  for (const auto& [name, parameter] : operands.parameters) {
    CAPTURE(name);
    CHECK(parameter.gradient().defined() == right["gradients"].contains(name));
    if (parameter.gradient().defined() && right["gradients"].contains(name))
      check_elements(numbers(parameter.gradient()), right["gradients"][name], expression.mean,
                     tolerance);
  }
}

/// Whether gradients flow through it.
bool records(const Expression& expression, const Operands& operands) {
  const Tape tape;
  return expression.ours(operands).gradient_ref().tape != GradientRef::nothing;
}

}  // namespace

TEST_CASE("vocabulary: everyday expressions give PyTorch's values and gradients") {
  const auto reference =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/test/vocabulary/expressions.json"));
  const std::vector<Expression> table = expressions();
  CHECK(table.size() >= 150);
  const auto& cases = reference["cases"];
  REQUIRE(cases.size() == 4 * table.size());
  for (const DType dtype : {DType::f64, DType::f32})
    for (std::size_t k = 0; k < cases.size(); ++k) {
      const Expression& expression = table[k / 4];
      REQUIRE(cases[k]["text"] == expression.text);
      if (dtype == DType::f32 && !takes_f32(expression)) continue;
      try {
        check_case(expression, cases[k], dtype);
      } catch (const Error& error) {
        FAIL_CHECK(expression.text, " ", cases[k]["shape"].dump(), " ", dtype, ": ",
                   std::string(error.what()));
      }
    }
}

TEST_CASE("vocabulary: gradients of everyday expressions are the numeric ones") {
  int checked = 0;
  for (const Expression& expression : expressions()) {
    CAPTURE(expression.text);
    Operands operands(3, 5);
    const bool smooth = expression.text.find("detach") == std::string::npos &&
                        expression.text.find("float32") == std::string::npos;
    if (!smooth || !records(expression, operands)) continue;
    std::vector<std::string> names;
    std::vector<Tensor> inputs;
    for (const auto& [name, parameter] : operands.parameters) {
      names.push_back(name);
      inputs.push_back(parameter.value());
    }
    const auto function = [&](std::span<const Tensor> now) {
      for (std::size_t i = 0; i < names.size(); ++i) operands.tensors[names[i]] = now[i];
      return expression.ours(operands);
    };
    const GradcheckResult result = gradcheck(function, inputs);
    INFO(result.where);
    CHECK(result.worst < 1e-6);
    ++checked;
  }
  CHECK(checked >= 120);
}
