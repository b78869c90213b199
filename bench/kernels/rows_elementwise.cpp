// The kernels of kernels/elementwise.h.
#include <cmath>
#include <numbers>

#include "case.h"
#include "lockstep/kernels/elementwise.h"
#include "sizes.h"

namespace bench {
namespace {

using namespace lockstep;
using kernels::Binary;
using kernels::Unary;

using Inputs = const std::vector<Values>&;
constexpr double elementwise_tolerance = 1e-5;  // a few roundings of f32, and those of exp and log

/// A function and its derivative, in f64. The derivative is by what the kernel saves: the output of
/// exp, relu, sigmoid, tanh and sqrt, else the input.
struct Formula {
  Unary op;
  double (*value)(double x);
  double (*derivative)(double saved);
};

double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
double normal_part(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

constexpr Formula formulas[] = {
    {Unary::relu, [](double x) { return std::max(x, 0.0); },
     [](double y) { return y > 0 ? 1.0 : 0.0; }},
    {Unary::sigmoid, logistic, [](double y) { return y * (1 - y); }},
    {Unary::tanh, [](double x) { return std::tanh(x); }, [](double y) { return 1 - y * y; }},
    {Unary::exp, [](double x) { return std::exp(x); }, [](double y) { return y; }},
    {Unary::log, [](double x) { return std::log(x); }, [](double x) { return 1 / x; }},
    {Unary::sqrt, [](double x) { return std::sqrt(x); }, [](double y) { return 1 / (2 * y); }},
    {Unary::gelu, [](double x) { return x * normal_part(x); },
     [](double x) { return normal_part(x) + x * normal_density(x); }},
    {Unary::silu, [](double x) { return x * logistic(x); },
     [](double x) { return logistic(x) * (1 + x * (1 - logistic(x))); }},
    {Unary::square, [](double x) { return x * x; }, [](double x) { return 2 * x; }},
    {Unary::neg, [](double x) { return -x; }, [](double) { return -1.0; }},
};

double apply(Binary op, double a, double b) {
  switch (op) {
    case Binary::add: return a + b;
    case Binary::sub: return a - b;
    case Binary::mul: return a * b;
    default: return a / b;
  }
}

Row unary(const Formula& formula, Scale scale) {
  const Unary op = formula.op;
  return {.name = std::string(kernels::name_of(op)),
          .sizes = flat(scale),
          .bytes = 8,
          .precision = {},
          .prepare = [op, value = formula.value](const Size& size, Source& source) -> Case {
            const Shape shape{size.dims[0]};
            const bool positive = op == Unary::log || op == Unary::sqrt;
            const Tensor x = positive ? source.uniform(shape, 0.1, 2) : source.normal(shape);
            const Tensor y = source.empty(shape);
            const auto expected = [value](Inputs in, std::int64_t i) { return value(in[0][i]); };
            return {.run = [=] { kernels::unary(op, x, y); },
                    .inputs = {x},
                    .outputs = {{y, expected, 1, elementwise_tolerance}}};
          }};
}

Row unary_backward(const Formula& formula, Scale scale) {
  const Unary op = formula.op;
  return {.name = std::string(kernels::name_of(op)) + "_backward",
          .sizes = flat(scale),
          .bytes = op == Unary::neg ? 8.0 : 12.0,
          .precision = {},
          .prepare = [op, slope = formula.derivative](const Size& size, Source& source) -> Case {
            const Shape shape{size.dims[0]};
            const Tensor dy = source.normal(shape), dx = source.empty(shape);
            const bool signs = op == Unary::relu || op == Unary::square;
            const Tensor saved = signs ? source.normal(shape) : source.uniform(shape, 0.05, 0.95);
            const auto expected = [slope](Inputs in, std::int64_t i) {
              return in[0][i] * slope(in[1][i]);
            };
            return {.run = [=] { kernels::unary_backward(op, dy, saved, dx, false); },
                    .inputs = {dy, saved},
                    .outputs = {{dx, expected, 1, elementwise_tolerance}}};
          }};
}

Row binary(Binary op, Scale scale) {
  return {.name = std::string(kernels::name_of(op)),
          .sizes = flat(scale),
          .bytes = 12,
          .precision = {},
          .prepare = [op](const Size& size, Source& source) -> Case {
            const Shape shape{size.dims[0]};
            const Tensor a = source.normal(shape), out = source.empty(shape);
            const Tensor b = source.uniform(shape, 0.5, 2);
            const auto expected = [op](Inputs in, std::int64_t i) {
              return apply(op, in[0][i], in[1][i]);
            };
            return {.run = [=] { kernels::binary(op, a, b, out); },
                    .inputs = {a, b},
                    .outputs = {{out, expected, 1, elementwise_tolerance}}};
          }};
}

/// x (N, C) and a row or a column that is repeated.
Row broadcast(bool row, Scale scale) {
  return {.name = row ? "add_row" : "add_column",
          .sizes = matrices(scale),
          .bytes = 8,
          .precision = {},
          .prepare = [row](const Size& size, Source& source) -> Case {
            const std::int64_t n = size.dims[0], c = size.dims[1];
            const Tensor a = source.normal({n, c}), out = source.empty({n, c});
            const Tensor b = source.normal(row ? Shape{c} : Shape{n, 1});
            const auto expected = [row, c](Inputs in, std::int64_t i) {
              return in[0][i] + in[1][row ? i % c : i / c];
            };
            return {.run = [=] { kernels::binary(Binary::add, a, b, out); },
                    .inputs = {a, b},
                    .outputs = {{out, expected, 1, elementwise_tolerance}}};
          }};
}

Row scale_row(bool accumulate, Scale scale) {
  return {.name = accumulate ? "scale_accumulate" : "scale",
          .sizes = flat(scale),
          .bytes = accumulate ? 12.0 : 8.0,
          .precision = {},
          .prepare = [accumulate](const Size& size, Source& source) -> Case {
            const Shape shape{size.dims[0]};
            const Tensor x = source.normal(shape), out = source.normal(shape);
            const auto expected = [accumulate](Inputs in, std::int64_t i) {
              return 0.75 * in[0][i] + (accumulate ? in[1][i] : 0);
            };
            return {.run = [=] { kernels::scale(0.75, x, out, accumulate); },
                    .inputs = accumulate ? std::vector{x, out} : std::vector{x},
                    .outputs = {{out, expected, 1, elementwise_tolerance}}};
          }};
}

Row broadcast_to(Scale scale) {
  return {.name = "broadcast_to",
          .sizes = matrices(scale),
          .bytes = 4,
          .precision = {},
          .prepare = [](const Size& size, Source& source) -> Case {
            const std::int64_t n = size.dims[0], c = size.dims[1];
            const Tensor x = source.normal({c}), out = source.empty({n, c});
            const auto expected = [c](Inputs in, std::int64_t i) { return in[0][i % c]; };
            return {.run = [=] { kernels::broadcast_to(x, out); },
                    .inputs = {x},
                    .outputs = {{out, expected, 1, 0}}};
          }};
}

Row cast(DType from, DType to, Scale scale) {
  return {.name = fmt::format("cast_{}_{}", from, to),
          .sizes = flat(scale),
          .bytes = static_cast<double>(size_of(from) + size_of(to)),
          .precision = {},
          .prepare = [=](const Size& size, Source& source) -> Case {
            const Shape shape{size.dims[0]};
            const Tensor x = source.normal(shape, from), out = source.empty(shape, to);
            const auto expected = [](Inputs in, std::int64_t i) { return in[0][i]; };
            const double spacing = to == DType::bf16 ? 0x1p-8 : to == DType::f16 ? 0x1p-11 : 0;
            return {.run = [=] { kernels::cast(x, out); },
                    .inputs = {x},
                    .outputs = {{out, expected, 1, spacing}}};
          }};
}

Row transpose(Scale scale) {
  return {.name = "transpose",
          .sizes = matrices(scale),
          .bytes = 8,
          .precision = {},
          .prepare = [](const Size& size, Source& source) -> Case {
            const std::int64_t n = size.dims[0], c = size.dims[1];
            const Tensor x = source.normal({n, c}), out = source.empty({c, n});
            const auto expected = [n, c](Inputs in, std::int64_t i) {
              return in[0][i % n * c + i / n];
            };
            return {.run = [=] { kernels::transpose(x, out); },
                    .inputs = {x},
                    .outputs = {{out, expected, 1, 0}}};
          }};
}

}  // namespace

std::vector<Row> elementwise_rows(Scale scale) {
  std::vector<Row> rows;
  for (const Formula& formula : formulas) rows.push_back(unary(formula, scale));
  for (const Formula& formula : formulas) rows.push_back(unary_backward(formula, scale));
  for (const Binary op : {Binary::add, Binary::sub, Binary::mul, Binary::div})
    rows.push_back(binary(op, scale));
  for (const bool row : {true, false}) rows.push_back(broadcast(row, scale));
  for (const bool accumulate : {false, true}) rows.push_back(scale_row(accumulate, scale));
  rows.push_back(broadcast_to(scale));
  rows.push_back(cast(DType::f32, DType::bf16, scale));
  rows.push_back(cast(DType::bf16, DType::f32, scale));
  rows.push_back(cast(DType::f32, DType::f16, scale));
  rows.push_back(cast(DType::f16, DType::f32, scale));
  rows.push_back(cast(DType::f32, DType::f64, scale));
  rows.push_back(transpose(scale));
  return rows;
}

}  // namespace bench
