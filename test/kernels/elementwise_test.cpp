#include "lockstep/kernels/elementwise.h"

#include <cmath>
#include <map>

#include "kernels/support.h"
#include "lockstep/kernels/broadcast.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

const std::map<std::string, Unary> unary_names = {
    {"neg", Unary::neg},       {"exp", Unary::exp},   {"log", Unary::log},
    {"relu", Unary::relu},     {"tanh", Unary::tanh}, {"sigmoid", Unary::sigmoid},
    {"square", Unary::square},
};

double apply(Binary op, double a, double b) {
  switch (op) {
    case Binary::add: return a + b;
    case Binary::sub: return a - b;
    case Binary::mul: return a * b;
    case Binary::div: return a / b;
    case Binary::remainder: return a - b * std::floor(a / b);
    case Binary::maximum: return std::max(a, b);
    case Binary::minimum: return std::min(a, b);
    case Binary::pow: return std::pow(a, b);
    case Binary::leaky: return a > 0 ? a : a * b;
    case Binary::leaky_slope: return a > 0 ? 1 : b;
  }
  return 0;
}

/// The offset in `shape` of element `i` of the broadcast shape `out`, straight from NumPy's rule.
std::int64_t source_index(std::int64_t i, const Shape& shape, const Shape& out) {
  std::int64_t offset = 0, stride = 1;
  for (int d = 1; d <= out.rank(); ++d) {
    const std::int64_t coordinate = i % out[-d];
    i /= out[-d];
    if (d > shape.rank()) continue;
    if (shape[-d] != 1) offset += coordinate * stride;
    stride *= shape[-d];
  }
  return offset;
}

const std::vector<std::pair<Shape, Shape>> broadcast_table = {
    {{}, {}},
    {{1}, {}},
    {{5}, {5}},
    {{33}, {}},
    {{}, {33}},
    {{7, 5}, {5}},
    {{5}, {7, 5}},
    {{7, 5}, {7, 1}},
    {{7, 1}, {1, 5}},
    {{1, 5}, {7, 1}},
    {{2, 3, 17}, {3, 1}},
    {{2, 1, 4}, {3, 1}},
    {{2, 3, 4, 5}, {2, 1, 1, 5}},
    {{2, 1, 3, 1, 2, 1}, {1, 4, 1, 3, 1, 5}},
    {{0}, {}},
    {{0, 3}, {3}},
    {{3, 0}, {3, 1}},
    {{1, 3}, {0, 1}},
    // Long enough for packs of 16 bytes and more than one block, with and without a rest.
    {{2053}, {}},
    {{300, 16}, {16}},
    {{300, 16}, {300, 1}},
    {{16}, {300, 16}},
    {{129, 33}, {33}},
    {{129, 33}, {129, 1}},
    {{40, 6, 4}, {40, 1, 4}},
    {{40, 6, 4}, {6, 1}},
};

}  // namespace

TEST_CASE_TEMPLATE("unary functions and gradients are PyTorch's", T, float, double) {
  CHECK(reference()["functions"]["unary"].size() == unary_names.size());
  for (const auto& entry : reference()["functions"]["unary"]) {
    const std::string name = entry["op"];
    CAPTURE(name);
    const Unary op = unary_names.at(name);
    const Values x = entry["x"], y = entry["y"], dy = entry["dy"], dx = entry["dx"];
    const Shape shape{static_cast<std::int64_t>(x.size())};
    const double close = tolerance<T>(1e-6, 1e-14);
    const Tensor input = of_values<T>(shape, x), output = nan<T>(shape);
    unary(op, input, output);
    check_close<T>(output, y, close);

    const Tensor gradient = nan<T>(shape), upstream = of_values<T>(shape, dy);
    const Tensor saved = op == Unary::neg ? Tensor() : saves_output(op) ? output : input;
    unary_backward(op, upstream, saved, gradient, false);
    check_close<T>(gradient, dx, 2 * close);
    unary_backward(op, upstream, saved, gradient, true);
    Values twice = dx;
    for (double& v : twice) v *= 2;
    check_close<T>(gradient, twice, 2 * close);
  }
}

TEST_CASE_TEMPLATE("a unary result does not depend on position, length or alignment", T, float,
                   double) {
  Values positive = to_values<T>(varied<T>({2500}));
  for (double& v : positive) v = std::abs(v) + 0.01;
  const Tensor x = of_values<T>({2500}, positive);
  for (const auto& [name, op] : unary_names) {
    CAPTURE_BINDING(name);
    const Tensor whole = nan<T>({2500});
    unary(op, x, whole);
    for (std::int64_t begin : {0, 1, 3, 15, 16, 17})
      for (std::int64_t n : {1, 2, 15, 16, 17, 33, 100, 2400}) {
        const Tensor part = nan<T>({n + 1}).slice(1, n + 1);
        unary(op, x.slice(begin, begin + n), part);
        check_close<T>(part, to_values<T>(whole.slice(begin, begin + n)), 0);
        const Tensor aligned = nan<T>({n});
        unary(op, x.slice(0, n), aligned);
        check_close<T>(aligned, to_values<T>(whole.slice(0, n)), 0);
      }
  }
}

TEST_CASE_TEMPLATE("unary functions at their edges", T, float, double) {
  const double inf = std::numeric_limits<double>::infinity(), nan_value = std::nan("");
  const auto at = [](Unary op, double x) {
    const Tensor out = nan<T>({});
    unary(op, Tensor::scalar(x, dtype_of<T>(), test_device()), out);
    return out.item();
  };
  for (const auto& [name, op] : unary_names) {
    CAPTURE_BINDING(name);
    CHECK(name_of(op) == name);
    CHECK(std::isnan(at(op, nan_value)));
    const Tensor nothing = Tensor::empty({0, 3}, dtype_of<T>(), test_device());
    unary(op, nothing, nothing);
    unary_backward(op, nothing, nothing, nothing, true);
  }
  CHECK(at(Unary::exp, 1000) == inf);
  CHECK(at(Unary::exp, inf) == inf);
  CHECK(at(Unary::exp, 0) == 1);
  CHECK(at(Unary::exp, -1000) < 1e-38);
  CHECK(at(Unary::log, 0) == -inf);
  CHECK(std::isnan(at(Unary::log, -1)));
  CHECK(at(Unary::log, 1) == 0);
  CHECK(at(Unary::relu, -inf) == 0);
  CHECK(at(Unary::relu, inf) == inf);
  CHECK(at(Unary::sigmoid, 1000) == 1);
  CHECK(at(Unary::sigmoid, -1000) < 1e-38);
  CHECK(at(Unary::tanh, -1000) == -1);
}

TEST_CASE_TEMPLATE("binary operations broadcast as NumPy does", T, float, double) {
  for (const auto& [shape_a, shape_b] : broadcast_table) {
    const Shape shape = Shape::broadcast("test", shape_a, shape_b);
    CAPTURE(shape.to_string());
    const Tensor a = varied<T>(shape_a, 1), b = varied<T>(shape_b, 2);
    for (Binary op : {Binary::add, Binary::sub, Binary::mul, Binary::div}) {
      Values expected;
      for (std::int64_t i = 0; i < shape.numel(); ++i)
        expected.push_back(apply(op, value_at(source_index(i, shape_a, shape), 1),
                                 value_at(source_index(i, shape_b, shape), 2)));
      const Tensor out = nan<T>(shape);
      binary(op, a, b, out);
      check_close<T>(out, expected, tolerance<T>(1e-7, 0));
      binary(op, a, b, out, true);
      for (double& v : expected) v *= 2;
      check_close<T>(out, expected, tolerance<T>(1e-7, 0));
    }
  }
}

TEST_CASE_TEMPLATE("a binary result does not depend on alignment", T, float, double) {
  const std::vector<std::pair<Shape, Shape>> table = {
      {{1300}, {1300}}, {{1300}, {}}, {{60, 20}, {20}}, {{60, 20}, {60, 1}}, {{50, 7}, {7}}};
  for (const auto& [shape_a, shape_b] : table) {
    const Tensor a = varied<T>(shape_a, 1), b = varied<T>(shape_b, 2), whole = nan<T>(shape_a);
    binary(Binary::div, a, b, whole);
    // A copy of x that begins `offset` elements into its memory.
    const auto moved = [](const Tensor& x, std::int64_t offset) {
      const Tensor copy = nan<T>({x.numel() + offset}).slice(offset, x.numel() + offset);
      copy.copy_from(x.view({x.numel()}));
      return copy.view(x.shape());
    };
    for (const int odd : {1, 2, 4, 7}) {  // bits: a, b, out
      CAPTURE(odd);
      const Tensor out = moved(whole, odd >> 2 & 1);
      out.fill(NAN);
      binary(Binary::div, moved(a, odd & 1), moved(b, odd >> 1 & 1), out);
      check_close<T>(out, to_values<T>(whole), 0);
      binary(Binary::sub, moved(a, odd & 1), moved(a, odd & 1), out, true);
      check_close<T>(out, to_values<T>(whole), 0);
    }
  }
}

TEST_CASE_TEMPLATE("broadcast_to repeats, scales and adds", T, float, double) {
  for (const auto& [shape_a, shape_b] : broadcast_table) {
    const Shape shape = Shape::broadcast("test", shape_a, shape_b);
    const Tensor a = varied<T>(shape_a, 1), out = nan<T>(shape);
    Values expected, sum;
    for (std::int64_t i = 0; i < shape.numel(); ++i) {
      expected.push_back(value_at(source_index(i, shape_a, shape), 1));
      sum.push_back(expected.back() * 0.5);
    }
    broadcast_to(a, out);
    check_close<T>(out, expected, 0);
    broadcast_to(a, out, true, -0.5);
    check_close<T>(out, sum, tolerance<T>(1e-7, 0));
  }
}

TEST_CASE_TEMPLATE("scale overwrites, adds, and works in place", T, float, double) {
  for (std::int64_t n : {0, 1, 7, 33}) {
    const Tensor x = varied<T>({n}), out = nan<T>({n});
    Values expected = to_values<T>(x);
    for (double& v : expected) v *= 3;
    scale(3, x, out, false);
    check_close<T>(out, expected, tolerance<T>(1e-7, 0));
    for (double& v : expected) v *= 2;
    scale(3, x, out, true);
    check_close<T>(out, expected, tolerance<T>(1e-7, 0));
    scale(0.5, out, out, false);
    for (double& v : expected) v /= 2;
    check_close<T>(out, expected, tolerance<T>(1e-7, 0));
  }
}

TEST_CASE_TEMPLATE("binary works in place", T, float, double) {
  const Tensor a = varied<T>({3, 5}, 1), row = varied<T>({5}, 2);
  Values expected;
  for (std::int64_t i = 0; i < 15; ++i) expected.push_back(value_at(i, 1) * value_at(i % 5, 2));
  binary(Binary::mul, a, row, a);
  check_close<T>(a, expected, tolerance<T>(1e-7, 0));
}

TEST_CASE_TEMPLATE("powers that are products and roots are those of pow", T, float, double) {
  Values bases = {0.0, 1.0, 1e-3, 1e3, 7.5, 0.1, 1e10, 1e-10};
  for (double& base : bases) base = static_cast<T>(base);
  for (const double exponent : {2.0, 3.0, 4.0, 1.0, 0.5, -0.5, -1.0, -1.5, -2.0, 0.0, 2.5, -3.0}) {
    CAPTURE(exponent);
    Values x = bases, expected;
    if (exponent == std::trunc(exponent))
      for (const double base : bases) x.push_back(-base);
    for (double& base : x) expected.push_back(static_cast<T>(std::pow(base, exponent)));
    const Tensor in = of_values<T>({static_cast<std::int64_t>(x.size())}, x),
                 out = nan<T>(in.shape());
    const auto few_ulps = [&] {
      const Values seen = to_values<T>(out);
      for (std::size_t i = 0; i < x.size(); ++i) {
        CAPTURE(x[i]);
        const double close = 4 * static_cast<double>(std::numeric_limits<T>::epsilon());
        CHECK((seen[i] == expected[i] ||
               std::abs(seen[i] - expected[i]) <= close * std::abs(expected[i])));
      }
    };
    const Tensor number = Tensor::scalar(exponent, dtype_of<T>(), test_device());
    binary(Binary::pow, in, number, out);
    few_ulps();
    // The bits of an element do not depend on whether the exponent is repeated.
    const Values repeated = to_values<T>(out);
    const Tensor exponents = nan<T>(in.shape());
    broadcast_to(number, exponents);
    binary(Binary::pow, in, exponents, out);
    check_close<T>(out, repeated, 0);
  }
  const Tensor negative = of_values<T>({2}, {-1, -2}), out = nan<T>({2});
  for (const double exponent : {0.5, -0.5, -1.5, 2.5}) {
    binary(Binary::pow, negative, Tensor::scalar(exponent, dtype_of<T>(), test_device()), out);
    CHECK(std::isnan(to_values<T>(out)[0]));
  }
}

TEST_CASE("the broadcast plan merges what belongs together") {
  const auto plan = [](Shape a, Shape b) {
    return broadcast_plan(a, b, Shape::broadcast("test", a, b));
  };
  CHECK(plan({4, 5, 6}, {4, 5, 6}).rank == 1);
  CHECK(plan({4, 5, 6}, {4, 5, 6}).sizes[0] == 120);
  CHECK(plan({4, 5, 6}, {}).rank == 1);
  CHECK(plan({4, 5, 6}, {}).stride_b[0] == 0);
  const StridePlan row = plan({4, 5, 6}, {6});
  CHECK(row.rank == 2);
  CHECK(row.sizes[0] == 6);
  CHECK(row.sizes[1] == 20);
  CHECK(row.stride_b[1] == 0);
  const StridePlan column = plan({20, 6}, {20, 1});
  CHECK(column.rank == 2);
  CHECK(column.stride_b[0] == 0);
  CHECK(column.stride_b[1] == 1);
  CHECK(plan({}, {}).rank == 1);
  CHECK(plan({}, {}).sizes[0] == 1);
}

TEST_CASE("elementwise kernels refuse what does not fit") {
  const Tensor a = varied<float>({2, 3}), b = varied<float>({2, 2}), d = varied<double>({2, 3});
  const Tensor label = Tensor::zeros({2, 3}, DType::i64, test_device());
  CHECK_THROWS_WITH_AS(binary(Binary::add, a, b, a),
                       "[add] shapes do not broadcast: (2, 3) and (2, 2)", ShapeError);
  CHECK_THROWS_WITH_AS(binary(Binary::add, a, a, b), "[add] out: expected shape (2, 3), got (2, 2)",
                       ShapeError);
  CHECK_THROWS_WITH_AS(binary(Binary::add, a, d, a), "[add] b: expected f32, got f64", DTypeError);
  CHECK_THROWS_WITH_AS(unary(Unary::exp, label, label), "[exp] takes f32 or f64, got i64",
                       DTypeError);
  CHECK_THROWS_AS(unary(Unary::exp, a, b), ShapeError);
  CHECK_THROWS_AS(unary(Unary::exp, Tensor(), a), ShapeError);
  CHECK_THROWS_AS(unary_backward(Unary::exp, a, Tensor(), a, false), ShapeError);
  CHECK_THROWS_AS(scale(1, a, b, false), ShapeError);
  CHECK_THROWS_AS(broadcast_to(a, b), ShapeError);
  CHECK_THROWS_AS(broadcast_to(a, varied<float>({3})), ShapeError);
}
