// The tree fold against a recursion written down separately, bit for bit.

#include "lockstep/kernels/tree_reduce.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/support.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

// Values whose sums round, so that the order of additions shows.
float value(std::size_t source, std::size_t i) {
  return std::sin(static_cast<float>(i * 31 + source * 7 + 1)) *
         std::exp2(static_cast<float>(source % 5));
}

// Split at the largest power of two below n: found by counting, not by bits.
template <class T>
T tree(const std::vector<T>& values, std::size_t begin, std::size_t n) {
  if (n == 1) return values[begin];
  std::size_t left = 1;
  while (left * 2 < n) left *= 2;
  return tree(values, begin, left) + tree(values, begin + left, n - left);
}

/// n sources of `count` elements on the test's device. Source k begins skip(k) elements into its
/// memory, and one more element follows it.
template <class T, class Skip>
struct Sources {
  Sources(std::size_t n, std::size_t count, Skip skip) : expected(count) {
    for (std::size_t k = 0; k < n; ++k) {
      std::vector<T> whole(skip(k) + count + 1, guard);
      for (std::size_t i = 0; i < count; ++i)
        whole[skip(k) + i] = static_cast<T>(1000 * value(k, i));
      const auto size = static_cast<std::int64_t>(whole.size());
      memory.push_back(here(Tensor::of<T>({size}, whole)));
      pointers.push_back(memory[k].raw() + skip(k) * sizeof(T));
      constant.push_back(pointers[k]);
    }
    std::vector<T> column(n);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < n; ++k) column[k] = static_cast<T>(1000 * value(k, i));
      expected[i] = tree(column, 0, n);
    }
  }
  /// What memory k should hold, once the result has been written to it.
  std::vector<T> after(std::size_t skip) const {
    std::vector<T> whole(skip, guard);
    whole.insert(whole.end(), expected.begin(), expected.end());
    whole.push_back(guard);
    return whole;
  }

  static constexpr T guard = 77;
  std::vector<Tensor> memory;
  std::vector<std::byte*> pointers;
  std::vector<const std::byte*> constant;
  std::vector<T> expected;
};

/// Into memory apart, which begins at skip(n), and then into all the sources.
template <class T, class Skip>
void check_fold(std::size_t n, std::size_t count, Skip skip) {
  CAPTURE(n);
  CAPTURE(count);
  const Sources<T, Skip> sources(n, count, skip);
  const auto size = static_cast<std::int64_t>(count);
  const auto skip_apart = [&](std::size_t) { return skip(n); };
  const Sources<T, decltype(skip_apart)> apart(1, count, skip_apart);
  kernels::tree_reduce(dtype_of<T>(), sources.constant, apart.pointers, size, test_device());
  auto expected = sources.after(skip(n));
  CHECK(apart.memory[0].template to_vector<T>() == expected);

  kernels::tree_reduce(dtype_of<T>(), sources.constant, sources.pointers, size, test_device());
  for (std::size_t k = 0; k < n; ++k) {
    expected = sources.after(skip(k));
    CHECK(sources.memory[k].template to_vector<T>() == expected);
  }
}

template <class T>
void check_fold(std::size_t n, std::size_t count) {
  check_fold<T>(n, count, [](std::size_t) { return std::size_t{0}; });
}

/// Sources of 16 bits each: bits for bits what the tree in f32, rounded once, gives.
template <class T>
void check_narrow_fold(std::size_t n, std::size_t count, std::size_t skip) {
  CAPTURE(n);
  CAPTURE(count);
  CAPTURE(skip);
  std::vector<Tensor> memory;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> all;
  std::vector<std::vector<float>> columns(count);
  for (std::size_t k = 0; k < n; ++k) {
    std::vector<T> whole(skip + count + 1, T(77.0f));
    for (std::size_t i = 0; i < count; ++i) {
      whole[skip + i] = T(value(k, i));
      columns[i].push_back(static_cast<float>(whole[skip + i]));
    }
    memory.push_back(here(Tensor::of<T>({static_cast<std::int64_t>(whole.size())}, whole)));
    all.push_back(memory[k].raw() + skip * sizeof(T));
    sources.push_back(all[k]);
  }
  kernels::tree_reduce(dtype_of<T>(), sources, all, static_cast<std::int64_t>(count),
                       test_device());
  for (std::size_t k = 0; k < n; ++k) {
    const std::vector<T> result = memory[k].template to_vector<T>();
    for (std::size_t i = 0; i < result.size(); ++i) {
      const bool inside = i >= skip && i < skip + count;
      const T expected = inside ? T(tree(columns[i - skip], 0, n)) : T(77.0f);
      CHECK(result[i].bits == expected.bits);
      if (!inside) continue;
      // And near the sum in f64: half a unit of the result's last place, and f32's roundings.
      double sum = 0, sizes = 0;
      for (const float x : columns[i - skip]) sum += x, sizes += std::abs(x);
      const double unit = std::is_same_v<T, Half> ? 0x1p-11 : 0x1p-8;
      CHECK(std::abs(static_cast<double>(result[i]) - sum) <=
            unit * std::abs(sum) + 0x1p-22 * sizes + 0x1p-25);
    }
  }
}

}  // namespace

TEST_CASE("tree_reduce is a balanced tree for any number of sources and elements") {
  // More than one grid's share on a GPU of few multiprocessors, as the simulator's is.
  const std::vector<std::size_t> counts = on_cpu()
                                              ? std::vector<std::size_t>{1, 3, 17, 1023, 1024, 3001}
                                              : std::vector<std::size_t>{1, 17, 1025};
  for (std::size_t n = 1; n <= 9; ++n)
    for (const std::size_t count : counts) {
      check_fold<float>(n, count);
      check_fold<double>(n, count);
      check_fold<std::int32_t>(n, count);
      check_fold<std::int64_t>(n, count);
    }
  for (std::size_t n = 10; n <= 16; ++n) check_fold<float>(n, 37);
  check_fold<float>(3, 40'001);
  check_fold<double>(2, 20'003);
  if (on_cpu()) check_fold<float>(33, 1500);  // a GPU takes 16
}

TEST_CASE("tree_reduce does not mind where its operands begin") {
  for (const std::size_t count : {1, 2, 3, 4, 5, 7, 8, 30, 31})
    for (const std::size_t first : {0, 1, 2, 3}) {  // alike, all but the result, all differently
      check_fold<float>(3, count, [&](std::size_t) { return first; });
      check_fold<float>(3, count, [&](std::size_t k) { return first + k / 3; });
      check_fold<double>(4, count, [&](std::size_t) { return first; });
      check_fold<float>(5, count, [&](std::size_t k) { return first + k; });
      check_fold<std::int64_t>(2, count, [&](std::size_t k) { return first + k; });
    }
}

TEST_CASE("tree_reduce adds f16 and bf16 up in f32 and rounds once") {
  for (std::size_t n = 1; n <= 9; ++n)
    for (const std::size_t count : {1, 7, 8, 33, 1025}) {
      check_narrow_fold<Half>(n, count, n % 3);
      check_narrow_fold<BFloat16>(n, count, n % 2);
    }
  check_narrow_fold<BFloat16>(16, 37, 0);
  check_narrow_fold<Half>(16, 37, 8);
  check_narrow_fold<BFloat16>(3, 20'001, 0);
  // 1 + 2^-8 + 2^-8: every sum in bf16 would fall back to 1; in f32 it is 1 + 2^-7.
  const Tensor one = here(Tensor::of<BFloat16>({1}, {BFloat16(1.0f)}));
  const Tensor bit = here(Tensor::of<BFloat16>({1}, {BFloat16(0x1p-8f)}));
  const std::vector<const std::byte*> three = {one.raw(), bit.raw(), bit.raw()};
  std::byte* out = one.raw();
  kernels::tree_reduce(DType::bf16, three, std::span(&out, 1), 1, test_device());
  CHECK(one.item() == 1 + 0x1p-7);
  const Tensor large = here(Tensor::of<Half>({1}, {Half(65504.0f)}));
  const std::vector<const std::byte*> twice(2, large.raw());
  out = large.raw();
  kernels::tree_reduce(DType::f16, twice, std::span(&out, 1), 1, test_device());
  CHECK(std::isinf(large.item()));
}

TEST_CASE("the order of additions shows in these values") {
  // Negative control: a chain from the left must not pass for the tree.
  int differences = 0;
  for (std::size_t i = 0; i < 1000; ++i) {
    std::vector<float> column;
    float chain = 0;
    for (std::size_t k = 0; k < 7; ++k) {
      column.push_back(value(k, i));
      chain = k == 0 ? column[0] : chain + column[k];
    }
    differences += std::bit_cast<std::uint32_t>(chain) !=
                   std::bit_cast<std::uint32_t>(tree(column, 0, column.size()));
  }
  CHECK(differences > 100);
}

TEST_CASE("tree_reduce of nothing, of integers that overflow, and of what it does not take") {
  const Tensor most =
      here(Tensor::of<std::int32_t>({1}, {std::numeric_limits<std::int32_t>::max()}));
  const Tensor sum = here(Tensor::of<std::int32_t>({1}, {5}));
  const std::vector<const std::byte*> two(2, most.raw());
  std::byte* const out = sum.raw();
  const auto fold = [&](DType dtype, std::span<const std::byte* const> sources,
                        std::int64_t count) {
    kernels::tree_reduce(dtype, sources, std::span(&out, 1), count, test_device());
  };
  fold(DType::i32, two, 0);
  CHECK(sum.item() == 5);
  fold(DType::i32, two, 1);
  CHECK(sum.item() == -2);
  CHECK_THROWS_AS(fold(DType::u8, two, 1), DTypeError);
  CHECK_THROWS_AS(fold(DType::f32, {}, 1), ShapeError);
  if (on_cpu()) return;
  const std::vector<const std::byte*> many(17, most.raw());
  CHECK_THROWS_WITH_AS(fold(DType::i32, many, 1), "[tree_reduce] takes at most 16 sources, got 17",
                       ShapeError);
}

TEST_CASE("the tree over parts that lie one after another, of any power of two") {
  for (std::size_t n = 1; n <= 64; n *= 2)
    for (const std::size_t count : {0, 1, 5}) {
      CAPTURE(n);
      CAPTURE(count);
      std::vector<float> all, expected(count);
      for (std::size_t k = 0; k < n; ++k)
        for (std::size_t i = 0; i < count; ++i) all.push_back(1000 * value(k, i));
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<float> column;
        for (std::size_t k = 0; k < n; ++k) column.push_back(1000 * value(k, i));
        expected[i] = tree(column, 0, n);
      }
      const auto rows = static_cast<std::int64_t>(n), columns = static_cast<std::int64_t>(count);
      const Tensor sum = kernels::tree_sum(here(Tensor::of<float>({rows, columns}, all)));
      CHECK(sum.shape() == Shape{1, columns});
      CHECK(sum.to_vector<float>() == expected);
    }
}
