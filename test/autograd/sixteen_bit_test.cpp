// f16 and bf16 through every operation: the values and gradients of f32, rounded. And operands of
// different dtypes are refused by name.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "lockstep/autograd/ops.h"
#include "support/device.h"
#include "support/op_table.h"

using namespace lockstep;
using test::test_device;

namespace {

/// The operands of a case, with values that are exact in `dtype`, as f32.
std::vector<Tensor> exact_in(DType dtype, const OpCase& op, const std::vector<Shape>& shapes) {
  std::vector<Tensor> result;
  for (const Tensor& x : operands(op, shapes, DType::f32, test_device()))
    result.push_back(cast(cast(x, dtype), DType::f32));
  return result;
}

/// The value, and the gradients of a weighted sum of it, all as f32. The operands are of `dtype`;
/// the weights are exact in 16 bits.
std::vector<Tensor> computed_in(DType dtype, const TensorFunction& function,
                                const std::vector<Tensor>& values) {
  Tape tape;
  std::vector<Tensor> watched;
  for (const Tensor& x : values) watched.push_back(tape.watch(cast(x, dtype)));
  const Tensor y = function(watched);
  CHECK(y.dtype() == dtype);
  const Tensor probe = Tensor::empty(y.shape());
  for (std::int64_t i = 0; i < probe.numel(); ++i)
    probe.data<float>()[i] = static_cast<float>((i % 5 + 1) * (i % 3 == 1 ? -0.25 : 0.25));
  tape.backward(sum(y * cast(probe.to(test_device()), dtype)));
  std::vector<Tensor> all = {cast(y.detach(), DType::f32)};
  for (const Tensor& x : watched) {
    const Tensor gradient = tape.gradient(x);
    CHECK(gradient.dtype() == dtype);
    all.push_back(cast(gradient, DType::f32));
  }
  return all;
}

/// The largest difference, in units of the last place of the expected element. With `of_largest`,
/// of the largest expected element: where rounded numbers are added up.
double units_apart(DType dtype, const Tensor& got, const Tensor& expected, bool of_largest) {
  const bool half = dtype == DType::f16;
  const auto a = got.to_vector<float>(), b = expected.to_vector<float>();
  double largest = 0, worst = 0;
  for (const float x : b) largest = std::max(largest, std::abs(static_cast<double>(x)));
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double size =
        std::max(of_largest ? largest : std::abs(static_cast<double>(b[i])), 1e-300);
    const double unit = std::max(std::ldexp(1.0, std::ilogb(size) - (half ? 10 : 7)),
                                 half ? std::ldexp(1.0, -24) : 1e-38);
    const double error = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) / unit;
    worst = std::isnan(error) ? 1e300 : std::max(worst, error);
  }
  return worst;
}

/// Cases that are several operations, each of which rounds, or whose operand is used several times.
bool rounds_often(const std::string& name) {
  for (const char* const one :
       {"with numbers", "pow of a number", "cat", "where", "matmul of vectors", "bce_with_logits"})
    if (name == one) return true;
  return false;
}

}  // namespace

TEST_CASE("16-bit operands: every operation computes in f32 and rounds once") {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const OpCase& op : op_table())
      for (const auto& shapes : op.shapes) {
        INFO(title(op, shapes), " ", name_of(dtype));
        const std::vector<Tensor> values = exact_in(dtype, op, shapes);
        const auto got = computed_in(dtype, op.function, values);
        const auto expected = computed_in(DType::f32, op.function, values);
        const bool often = rounds_often(op.name);
        for (std::size_t k = 0; k < got.size(); ++k) {
          INFO("result ", k);  // the value, then the gradients
          REQUIRE(got[k].shape() == expected[k].shape());
          CHECK(units_apart(dtype, got[k], expected[k], often) <= (often ? 2 : 0.51));
        }
      }
}

TEST_CASE("16-bit operands: gradients add up where an operand is used twice") {
  for (const OpCase& op : op_table())
    for (const auto& shapes : op.shapes) {
      INFO(title(op, shapes));
      const auto twice = [&](std::span<const Tensor> x) { return op.function(x) + op.function(x); };
      const std::vector<Tensor> values = exact_in(DType::bf16, op, shapes);
      const auto got = computed_in(DType::bf16, twice, values);
      const auto expected = computed_in(DType::f32, twice, values);
      for (std::size_t k = 0; k < got.size(); ++k)
        CHECK(units_apart(DType::bf16, got[k], expected[k], rounds_often(op.name)) <= 2);
    }
}

TEST_CASE("16-bit operands: operations without gradients see the same values as in f32") {
  const Tensor a = Tensor::of<float>({2, 3}, {1, -2.5f, 3, 0.5f, std::nanf(""), 0.5f});
  const Tensor b = Tensor::of<float>({3}, {1, 2, -INFINITY});
  struct Row {
    const char* name;
    std::function<Tensor(const Tensor&, const Tensor&)> function;
  };
  const std::vector<Row> rows = {
      {"==", [](auto& x, auto& y) { return x == y; }},
      {"!=", [](auto& x, auto& y) { return x != y; }},
      {"<", [](auto& x, auto& y) { return x < y; }},
      {"<=", [](auto& x, auto& y) { return x <= y; }},
      {">", [](auto& x, auto& y) { return x > y; }},
      {">=", [](auto& x, auto& y) { return x >= y; }},
      {"== number", [](auto& x, auto&) { return x == 0.5; }},
      {"< number", [](auto& x, auto&) { return x < 0.75; }},
      {"isnan", [](auto& x, auto&) { return isnan(x); }},
      {"isfinite", [](auto&, auto& y) { return isfinite(y); }},
      {"any", [](auto& x, auto&) { return any(x); }},
      {"all", [](auto& x, auto&) { return all(x); }},
      {"argmax", [](auto& x, auto&) { return argmax(x, 1); }},
      {"argmin", [](auto&, auto& y) { return argmin(y, 0); }},
      {"max", [](auto& x, auto&) { return max(x, 0).indices; }},
      {"min", [](auto&, auto& y) { return min(y, 0).indices; }},
      {"to i64", [](auto& x, auto&) { return cast(x.slice(0, 1), DType::i64); }},
      {"to u8", [](auto& x, auto&) { return cast(x.slice(0, 1) > 0, DType::u8); }},
      {"+=",
       [](auto& x, auto& y) {
         Tensor z = x.clone();
         return cast(z += y, DType::f32);
       }},
      {"-=",
       [](auto& x, auto& y) {
         Tensor z = x.clone();
         return cast(z -= y, DType::f32);
       }},
      {"*= number",
       [](auto& x, auto&) {
         Tensor z = x.clone();
         return cast(z *= 4, DType::f32);
       }},
      {"/= number",
       [](auto& x, auto&) {
         Tensor z = x.clone();
         return cast(z /= 2, DType::f32);
       }},
  };
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const Row& row : rows) {
      INFO(row.name, " ", name_of(dtype));
      const auto of = [&](DType type) {
        const Tensor x = cast(a.to(test_device()), type), y = cast(b.to(test_device()), type);
        return cast(row.function(x, y), DType::f64).to_vector<double>();
      };
      const auto got = of(dtype), expected = of(DType::f32);
      REQUIRE(got.size() == expected.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        CHECK((got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))));
    }
}

TEST_CASE("16-bit operands: a number is not rounded to 16 bits, a mask becomes either type") {
  const Tensor x = Tensor::full({1}, 3, DType::bf16, test_device());
  const double exact = BFloat16(3.0f * 0.1f).operator float();
  CHECK((x * 0.1).item() == exact);
  CHECK((x / 10.0).item() == exact);
  Tensor y = x.clone();
  y *= 0.1;
  CHECK(y.item() == exact);
  CHECK((x + 1.0 / 3).item() == BFloat16(3 + 1.0f / 3).operator float());
  CHECK((x > 2).dtype() == DType::u8);
  CHECK(cast(x > 2, DType::bf16).item() == 1);
}

TEST_CASE("operands of different dtypes are refused, and both are named") {
  const auto is = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const auto refusal = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const DTypeError& error) {
      return error.what();
    }
    return "nothing was refused";
  };
  const DType others[] = {DType::f64, DType::bf16, DType::f16, DType::i64};
  for (const OpCase& op : op_table()) {
    const std::vector<Tensor> values = operands(op, op.shapes.front(), DType::f32, test_device());
    for (std::size_t k = 0; values.size() > 1 && k < values.size(); ++k)
      for (const DType other : others) {
        std::vector<Tensor> mixed = values;
        mixed[k] = cast(mixed[k], other);
        const std::string text = refusal([&] { op.function(mixed); });
        INFO(op.name, " operand ", k, " ", name_of(other), ": ", text);
        CHECK(text.front() == '[');
        CHECK(is(text, fmt::format("{}", other).c_str()));
        // An integer may meet an operation on it alone first, which takes none.
        if (other != DType::i64) {
          CHECK(is(text, " is f32"));
          CHECK(is(text, fmt::format(" is {}", other).c_str()));
          CHECK(is(text, ", but "));
        }
      }
  }
}

TEST_CASE("operands of different dtypes: the texts") {
  const Tensor x = Tensor::ones({2, 3}), y = Tensor::ones({2, 3}, DType::f64);
  const Tensor half = Tensor::ones({2, 3}, DType::bf16), v = Tensor::ones({3}, DType::f64);
  const Tensor whole = Tensor::ones({2}, DType::i64);
  Tensor z = x.clone();
  const auto says = [](const std::string& text, const auto& call) {
    const bool compares = text.find(", but ") != std::string::npos;
    const std::string hint = compares ? ": cast(tensor, dtype) makes them alike" : "";
    CHECK_THROWS_WITH_AS(call(), (text + hint).c_str(), DTypeError);
  };
  says("[add] a is f32, but b is f64", [&] { x + y; });
  says("[mul] a is f32, but b is f64", [&] { x* Tensor::scalar(2, DType::f64); });
  says("[mul] a is bf16, but b is f32", [&] { half* Tensor::scalar(2); });
  says("[sub] a is i64, but b is f32", [&] { Tensor::ones({2, 3}, DType::i64) - x; });
  says("[add] a is f32, but b is bf16", [&] { z += half; });
  says("[remainder] a is f32, but b is f64", [&] { x % y; });
  says("[pow] base is f32, but exponent is f64", [&] { pow(x, y); });
  says("[compare] a is f32, but b is f64", [&] { x < y; });
  says("[maximum] a is f32, but b is f64", [&] { maximum(x, y); });
  says("[where] a is f32, but b is f64", [&] { where(x > 0, x, y); });
  says("[where] mask is f32, and must be u8", [&] { where(x, x, x); });
  says("[mean] takes f32, f64, f16 or bf16, got i64", [&] { mean(whole); });
  says("[mean] takes f32, f64, f16 or bf16, got i64", [&] { mean(whole, 0); });
  says("[cat] tensors[0] is f32, but tensors[2] is bf16", [&] { cat({x, x, half}); });
  says("[cat] tensors[0] is f32, but tensors[1] is f64", [&] { stack({x, y}); });
  says("[matmul] a is f32, but b is f64", [&] { matmul(x, transpose(y)); });
  says("[matmul] a is f32, but b is f64", [&] { matmul(x, v); });
  says("[dot] a is f32, but b is f64", [&] { dot(Tensor::ones({3}), v); });
  says("[outer] a is f32, but b is f64", [&] { outer(Tensor::ones({3}), v); });
  says("[linear] x is f32, but b is f64", [&] { linear(x, x, Tensor::ones({2}, DType::f64)); });
  says("[linear] x is bf16, but w is f32", [&] { linear(half, x); });
  says("[layer_norm] x is f32, but weight is f64", [&] { layer_norm(x, v); });
  says("[rms_norm] x is f32, but weight is f64", [&] { rms_norm(x, v); });
  says("[batch_norm] x is f32, but bias is f64", [&] { batch_norm(x, {}, v); });
  says("[mse] x is f32, but y is f64", [&] { mse(x, y); });
  says("[bce_with_logits] logits is f32, but targets is f64", [&] { bce_with_logits(x, y); });
  says("[cross_entropy] labels is f32, and must be i64",
       [&] { cross_entropy(x, Tensor::ones({2})); });
  says("[cross_entropy] logits is f32, but weight is f64",
       [&] { cross_entropy(x, whole, {.weight = v}); });
  says("[nll] log_probabilities is f32, but weight is f64", [&] { nll(x, whole, {.weight = v}); });
  says("[index_select] index is f32, and must be i64",
       [&] { index_select(x, 0, Tensor::ones({2})); });
  CHECK(z.to_vector<float>() == x.to_vector<float>());
}
