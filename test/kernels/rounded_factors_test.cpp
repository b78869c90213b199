// Products that are to round factors of f32: on every device the bits of a cast before them.
#include <doctest/doctest.h>

#include <cstring>
#include <vector>

#include "kernels/support.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"

namespace rounded_factors_cases {
namespace {

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

/// Rounded, they are integers from -3 to 3, whose sums are exact in any order. As they are, the
/// error of a sum shows.
Tensor almost_integers(const Shape& shape, int seed) {
  Values values;
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    values.push_back(std::round(1.5 * value_at(i, seed)) * (1 + 0x1p-13));
  return of_values<float>(shape, values);
}

Tensor as(DType dtype, const Tensor& x) {
  const Tensor y = here(Tensor::empty(x.shape(), dtype));
  cast(x, y);
  return y;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Device{}), y = b.to(Device{});
  return x.dtype() == y.dtype() && std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
}

/// f(dtype, dtype of the results, whether the left factor is left as f32, the right one).
void each_kind(auto&& f) {
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const DType result : {dtype, DType::f32})
      for (const bool left : {false, true})
        for (const bool right : {false, true}) {
          CAPTURE(dtype);
          CAPTURE(result);
          CAPTURE(left);
          CAPTURE(right);
          f(dtype, result, left, right);
        }
}

constexpr std::int64_t sizes[][3] = {{1, 1, 1}, {64, 72, 40}, {5, 130, 33}, {3, 4, 0}, {0, 2, 3}};

}  // namespace

TEST_CASE("matmul and linear round factors of f32 as a cast before them") {
  each_kind([](DType dtype, DType result, bool left, bool right) {
    for (const auto& [m, n, k] : sizes)
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          const Tensor a = almost_integers(ta ? Shape{k, m} : Shape{m, k}, 1);
          const Tensor b = almost_integers(tb ? Shape{n, k} : Shape{k, n}, 2);
          const Tensor a16 = as(dtype, a), b16 = as(dtype, b);
          const Tensor start = as(result, almost_integers({m, n}, 3));
          const Tensor bias = as(result, almost_integers({n}, 4));
          const std::vector<std::int64_t> cuts{0, m / 3, m};
          const auto check = [&](auto&& product) {
            const Tensor expected = start.clone(), found = start.clone();
            product(a16, b16, expected, DType::f32);
            product(left ? a : a16, right ? b : b16, found, dtype);
            CHECK(same_bits(found, expected));
          };
          for (const bool accumulate : {false, true})
            check([&](const Tensor& x, const Tensor& y, const Tensor& out, DType round_to) {
              matmul(x, y, out, {ta, tb, accumulate, round_to}, {},
                     {.positive = accumulate ? Tensor() : start.clone()});
            });
          if (!ta)
            check([&](const Tensor& x, const Tensor& y, const Tensor& out, DType round_to) {
              matmul(x, y, out, {ta, tb, false, round_to}, cuts);
            });
          if (!ta && tb)
            check([&](const Tensor& x, const Tensor& y, const Tensor& out, DType round_to) {
              linear(x, y, {.bias = bias, .relu = true}, out, {}, round_to);
            });
        }
  });
}

TEST_CASE("linear_gradients rounds factors of f32 as a cast before it, also in the sum of rows") {
  each_kind([](DType dtype, DType result, bool left, bool right) {
    for (const auto& [to, in, n] : sizes)
      for (const bool accumulate : {false, true}) {
        const Tensor dy = almost_integers({n, to}, 1), x = almost_integers({n, in}, 2);
        const auto gradients = [&](const Tensor& a, const Tensor& b, DType round_to) {
          const Tensor dw = as(result, almost_integers({to, in}, 3));
          const Tensor db = as(result, almost_integers({to}, 4));
          linear_gradients(a, b, {dw, accumulate}, {db, accumulate}, round_to);
          return std::vector<Tensor>{dw, db};
        };
        const Tensor dy16 = as(dtype, dy), x16 = as(dtype, x);
        const std::vector<Tensor> expected = gradients(dy16, x16, DType::f32);
        const std::vector<Tensor> found = gradients(left ? dy : dy16, right ? x : x16, dtype);
        CHECK(same_bits(found[0], expected[0]));
        CHECK(same_bits(found[1], expected[1]));
      }
  });
}

TEST_CASE("products round factors on their way where they are small, on a GPU") {
  const auto rounds = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return rounds_factors(test_device(), m, n, k);
  };
  // An MLP 784-512-256-10 on 128 rows, and the largest cube.
  const std::int64_t small[][3] = {
      {128, 512, 784}, {128, 256, 512}, {128, 10, 256}, {406, 406, 406}};
  for (const auto& [m, n, k] : small) {
    const bool expected = !on_cpu();
    CHECK(rounds(m, n, k) == expected);
    CHECK(rounds(k, m, n) == expected);
    CHECK(rounds(n, m, k) == expected);
  }
  CHECK(!rounds(407, 407, 407));
  CHECK(!rounds(1024, 1024, 1024));
  CHECK(!rounds(1 << 20, 1 << 20, 1));
}

TEST_CASE("products refuse factors that they cannot round") {
  const auto of = [](DType dtype) { return here(Tensor::zeros({2, 2}, dtype)); };
  const Tensor single = of(DType::f32), brain = of(DType::bf16), out = of(DType::f32);
  const auto to = [](DType dtype) { return MatmulFlags{.round_to = dtype}; };
  CHECK_THROWS_WITH_AS(matmul(single, single, out, to(DType::f64)),
                       "[matmul] factors are rounded to bf16 or f16, not to f64", DTypeError);
  CHECK_THROWS_WITH_AS(matmul(of(DType::f64), single, out, to(DType::bf16)),
                       "[matmul] a: expected bf16, got f64", DTypeError);
  CHECK_THROWS_WITH_AS(matmul(single, brain, out, to(DType::f16)),
                       "[matmul] b: expected f16, got bf16", DTypeError);
  CHECK_THROWS_AS(matmul(single, brain, out), DTypeError);
  CHECK_THROWS_AS(matmul(single, single, of(DType::f16), to(DType::bf16)), DTypeError);
  const std::vector<std::int64_t> blocks{0, 2};
  CHECK_THROWS_WITH_AS(
      matmul_blocks(single, single, out, blocks, {.transpose_a = true, .round_to = DType::bf16}),
      "[matmul_blocks] rounds no factors", UsageError);
}

}  // namespace rounded_factors_cases
