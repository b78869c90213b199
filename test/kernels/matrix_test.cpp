// Bias with activation, casts and transposes.
#include <bit>
#include <cstring>
#include <tuple>

#include "kernels/support.h"
#include "lockstep/kernels/elementwise.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

/// x rounded to `bits` significant bits and multiples of at least 2^least, ties to even; beyond
/// `largest` to infinity. From the definition of such formats, in f64.
double rounded(double x, int bits, int least, double largest) {
  if (!std::isfinite(x) || x == 0) return x;
  const int exponent = std::max(std::ilogb(x) - (bits - 1), least);
  const double result = std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
  return std::abs(result) > largest ? std::copysign(HUGE_VAL, x) : result;
}

double rounded(double x, DType dtype) {
  const double f32 = rounded(x, 24, -149, 0x1.fffffep127);
  switch (dtype) {
    case DType::f32: return f32;
    case DType::f16: return rounded(f32, 11, -24, 65504);
    case DType::bf16: return rounded(f32, 8, -133, 0x1.fep127);
    default: return x;
  }
}

/// Numbers that are hard to round: ties, halves of the smallest, the largest, and everyday ones.
Values hard_numbers() {
  Values values = {
      0,     -0.0,      1,       65504,     65519.99, 65520,       65536,
      1e30,  3.3953e38, 3.4e38,  1e39,      HUGE_VAL, -HUGE_VAL,   NAN,
      1e-40, 0x1p-24,   0x1p-25, 0x1.8p-24, 0x1p-133, 0x1.8p-133,  0x1p-134,
      1e-46, 2049,      2051,    257,       259,      -1.00390625, 1 + 0x1p-11 + 0x1p-40};
  for (int i = 0; i < 600; ++i) values.push_back(value_at(i, 3) * std::ldexp(1.0, i % 60 - 30));
  return values;
}

template <class From>
Tensor holding(const Values& values) {
  std::vector<From> elements;
  for (const double v : values) elements.push_back(static_cast<From>(v));
  return here(Tensor::of<From>({static_cast<std::int64_t>(values.size())}, elements));
}

/// Element i of a tensor that is to be transposed: the low bytes of a product with an odd number,
/// so that none comes twice among 2^(its bits) neighbours.
template <class T>
T word_at(std::int64_t i) {
  const std::uint64_t bits = static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u;
  T result;
  std::memcpy(&result, &bits, sizeof(T));
  return result;
}

template <class T>
void check_transpose(std::int64_t matrices, std::int64_t rows, std::int64_t columns,
                     std::int64_t skipped) {
  CAPTURE(matrices);
  CAPTURE(rows);
  CAPTURE(columns);
  CAPTURE(skipped);
  std::vector<T> elements;
  const std::int64_t n = matrices * rows * columns + skipped;
  for (std::int64_t i = 0; i < n; ++i) elements.push_back(word_at<T>(i));
  const Shape shape = matrices == 1 ? Shape{rows, columns} : Shape{matrices, 1, rows, columns};
  const Tensor x = here(Tensor::of<T>({n}, elements)).slice(skipped, n).view(shape);
  const Tensor out =
      Tensor::zeros({n}, dtype_of<T>(), test_device()).slice(skipped, n).view(transposed(shape));
  transpose(x, out);
  const std::vector<T> result = out.to_vector<T>();
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < matrices * rows * columns; ++i) {
    const std::int64_t first = i / (rows * columns) * (rows * columns);
    const std::int64_t r = (i - first) / columns, c = (i - first) % columns;
    const T expected = word_at<T>(i + skipped);
    wrong += std::memcmp(&result[static_cast<std::size_t>(first + c * rows + r)], &expected,
                         sizeof(T)) != 0;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("cast rounds to nearest, ties to even", From, float, double, Half, BFloat16) {
  const Values source = to_values<From>(holding<From>(hard_numbers()));
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
    CAPTURE(name_of(dtype));
    const auto n = static_cast<std::int64_t>(source.size());
    const Tensor out = Tensor::full({n}, 7, dtype, test_device());
    cast(holding<From>(source), out);
    visit_any_floating("test", dtype, [&](auto zero) {
      using To = decltype(zero);
      const Values result = to_values<To>(out);
      for (std::size_t i = 0; i < source.size(); ++i) {
        CAPTURE(source[i]);
        const double expected = rounded(source[i], dtype);
        CHECK((std::isnan(expected) ? std::isnan(result[i]) : result[i] == expected));
        CHECK(std::signbit(result[i]) ==
              (std::isnan(expected) ? std::signbit(result[i]) : std::signbit(expected)));
      }
      // Sizes and alignments, against the whole.
      for (const std::int64_t size : {0, 1, 3, 8, 13, 500})
        for (const std::int64_t begin : {0, 1, 3}) {
          const Tensor part = Tensor::full({size + 1}, 7, dtype, test_device()).slice(1, size + 1);
          cast(holding<From>(source).slice(begin, begin + size), part);
          check_close<To>(part, to_values<To>(out.slice(begin, begin + size)), 0);
        }
    });
  }
}

TEST_CASE("every 16-bit number survives the way to f32 and f64 and back") {
  const auto check_all = [](auto zero) {
    using T = decltype(zero);
    std::vector<T> all;
    for (int bits = 0; bits < 65536; ++bits)
      all.push_back(std::bit_cast<T>(static_cast<std::uint16_t>(bits)));
    const Tensor x = here(Tensor::of<T>({65536}, all));
    for (const DType dtype : {DType::f32, DType::f64}) {
      const Tensor wide = Tensor::empty({65536}, dtype, test_device());
      const Tensor back = Tensor::zeros({65536}, dtype_of<T>(), test_device());
      cast(x, wide);
      cast(wide, back);
      int wrong = 0;
      const std::vector<T> result = back.to_vector<T>();
      for (std::size_t i = 0; i < 65536; ++i)
        wrong += result[i].bits != all[i].bits && !(std::isnan(static_cast<float>(all[i])) &&
                                                    std::isnan(static_cast<float>(result[i])));
      CHECK(wrong == 0);
    }
  };
  check_all(Half{});
  check_all(BFloat16{});
}

TEST_CASE("transpose at all sizes, element sizes and alignments") {
  using Sizes = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
  for (const auto& [matrices, rows, columns] : std::vector<Sizes>{{1, 1, 1},
                                                                  {1, 0, 5},
                                                                  {1, 5, 0},
                                                                  {1, 1, 40},
                                                                  {1, 40, 1},
                                                                  {1, 33, 65},
                                                                  {1, 64, 64},
                                                                  {1, 31, 130},
                                                                  {1, 129, 128},
                                                                  {1, 48, 272},
                                                                  {1, 300, 16},
                                                                  {0, 3, 4},
                                                                  {5, 3, 7},
                                                                  {3, 16, 48},
                                                                  {4, 130, 33},
                                                                  {2, 1, 9},
                                                                  {2, 0, 9}})
    for (const std::int64_t skipped : {0, 1}) {
      check_transpose<std::uint8_t>(matrices, rows, columns, skipped);
      check_transpose<Half>(matrices, rows, columns, skipped);
      check_transpose<BFloat16>(matrices, rows, columns, skipped);
      check_transpose<std::int32_t>(matrices, rows, columns, skipped);
      check_transpose<float>(matrices, rows, columns, skipped);
      check_transpose<double>(matrices, rows, columns, skipped);
      check_transpose<std::int64_t>(matrices, rows, columns, skipped);
    }
}

TEST_CASE("matrix kernels refuse what does not fit") {
  const Tensor x = varied<float>({2, 3});
  CHECK_THROWS_WITH_AS(transpose(x, x), "[transpose] out: expected shape (3, 2), got (2, 3)",
                       ShapeError);
  CHECK_THROWS_WITH_AS(transpose(x, varied<double>({3, 2})),
                       "[transpose] out: expected f32, got f64", DTypeError);
  CHECK_THROWS_AS(transpose(varied<float>({3}), varied<float>({3})), ShapeError);
  CHECK_THROWS_AS(cast(x, varied<double>({6})), ShapeError);
}
