// Chain products against chains of std::fma that are written down here, bit for bit.

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "kernels/support.h"
#include "lockstep/kernels/cpu/chain/multiply.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

template <class T>
using Numbers = std::vector<T>;
using Blocks = std::vector<std::int64_t>;

struct Sizes {
  std::int64_t m, n, k;
};

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Values whose sums round. They begin one element into their memory: no vector is aligned.
template <class T>
Numbers<T> values(std::int64_t n, int seed) {
  Numbers<T> result(at(n + 1));
  for (std::int64_t i = 0; i < n; ++i)
    result[at(i + 1)] = static_cast<T>(value_at(i, seed) * (i % 3 == 0 ? 1e-3 : 1.1));
  return result;
}

/// A product, its operands, and what it should give.
template <class T>
struct Case {
  Sizes size;
  bool ta, tb;
  Numbers<T> a, b, c, bias;
  Blocks blocks;

  Case(Sizes s, bool transpose_a, bool transpose_b)
      : size(s),
        ta(transpose_a),
        tb(transpose_b),
        a(values<T>(s.m * s.k, 1)),
        b(values<T>(s.k * s.n, 2)),
        c(values<T>(s.m * s.n, 3)),
        bias(values<T>(s.n, 4)) {}

  T chain(std::int64_t i, std::int64_t j, Blocks range, T sum) const {
    for (std::int64_t p = range[0]; p < range[1]; ++p)
      sum = std::fma(a[at(1 + (ta ? p * size.m + i : i * size.k + p))],
                     b[at(1 + (tb ? j * size.k + p : p * size.n + j))], sum);
    return sum;
  }

  Numbers<T> expected(bool accumulate, bool with_bias) const {
    Numbers<T> result(1, c[0]);
    for (std::int64_t i = 0; i < size.m; ++i)
      for (std::int64_t j = 0; j < size.n; ++j) {
        const T before = accumulate ? c[at(1 + i * size.n + j)] : 0;
        if (blocks.empty()) {
          result.push_back(chain(i, j, {0, size.k}, with_bias ? bias[at(1 + j)] : before));
          continue;
        }
        Numbers<T> sums;
        for (std::size_t l = 0; l + 1 < blocks.size(); ++l)
          sums.push_back(chain(i, j, {blocks[l], blocks[l + 1]}, 0));
        while (sums.size() > 1) {  // level by level
          for (std::size_t l = 0; l < sums.size() / 2; ++l) sums[l] = sums[2 * l] + sums[2 * l + 1];
          sums.resize(sums.size() / 2);
        }
        result.push_back(accumulate ? before + sums[0] : sums[0]);
      }
    return result;
  }

  template <class F>
  void check_with(F multiply, bool accumulate, bool with_bias, const Numbers<T>& wanted) const {
    Numbers<T> out = accumulate ? c : Numbers<T>(c.size(), std::numeric_limits<T>::quiet_NaN());
    out[0] = c[0];
    multiply(GemmProblem<T>{size.m, size.n, size.k, a.data() + 1, ta, b.data() + 1, tb,
                            out.data() + 1, accumulate, with_bias ? bias.data() + 1 : nullptr},
             blocks);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      wrong += std::memcmp(&out[i], &wanted[i], sizeof(T)) != 0 &&
               !(std::isnan(out[i]) && std::isnan(wanted[i]));
    CHECK_MESSAGE(wrong == 0, wrong, " of ", wanted.size(), " elements have other bits");
  }

  /// All vectors that this build has.
  void check(bool accumulate, bool with_bias, bool fast_only = false) const {
    CAPTURE(size.m);
    CAPTURE(size.n);
    CAPTURE(size.k);
    CAPTURE(ta);
    CAPTURE(tb);
    CAPTURE(accumulate);
    CAPTURE(with_bias);
    CAPTURE(blocks.size());
    const Numbers<T> wanted = expected(accumulate, with_bias);
    const auto fast = [](const auto& problem, const Blocks& of) { cpu::chain_gemm(problem, of); };
    check_with(fast, accumulate, with_bias, wanted);
    if (fast_only) return;
    check_with(chain::multiply<chain::Scalar<T>>, accumulate, with_bias, wanted);
#ifdef LOCKSTEP_CHAIN_AVX2
    check_with(chain::multiply<chain::Avx2<T>>, accumulate, with_bias, wanted);
#endif
  }
};

// Around the tiles of every vector (4 x 2, 6 x 16, 14 x 32; of f64 6 x 8, 14 x 16), and the blocks
// of k (512).
const Sizes all_sizes[] = {{1, 1, 1},    {2, 3, 4},     {1, 7, 5},    {7, 1, 5},    {5, 9, 1},
                           {6, 16, 8},   {7, 17, 9},    {14, 32, 16}, {15, 33, 17}, {13, 15, 31},
                           {32, 10, 64}, {29, 47, 100}, {3, 50, 512}, {16, 5, 513}, {2, 35, 1030},
                           {33, 2, 511}, {0, 3, 4},     {3, 0, 4},    {3, 4, 0}};

/// Blocks of uneven lengths.
Blocks uneven(std::int64_t count, std::int64_t k) {
  Blocks blocks{0};
  for (std::int64_t i = 1; i < count; ++i)
    blocks.push_back(std::max(blocks.back(), k * i / count + i % 3 - 1));
  blocks.push_back(k);
  for (std::int64_t& begin : blocks) begin = std::min(begin, k);
  return blocks;
}

template <class T>
Tensor tensor_of(const Shape& shape, const Numbers<T>& shifted_by_one) {
  return Tensor::of<T>(shape, Numbers<T>(shifted_by_one.begin() + 1, shifted_by_one.end()));
}

bool same_bits(const Tensor& x, const Tensor& y) {
  return x.bytes() == y.bytes() && std::memcmp(x.raw(), y.raw(), x.bytes()) == 0;
}

}  // namespace

TEST_CASE_TEMPLATE("a chain product's elements are chains, with all vectors", T, float, double) {
  for (const Sizes& size : all_sizes)
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        const Case<T> product(size, ta, tb);
        product.check(false, false);
        product.check(true, false);
        product.check(false, true);
      }
}

TEST_CASE_TEMPLATE("chain products larger than what stays in the cache", T, float, double) {
  Case<T>({301, 305, 450}, false, false).check(true, false, true);
  Case<T>({305, 301, 450}, true, true).check(true, false, true);
  Case<T> blocks({65, 67, 2101}, true, false);
  blocks.blocks = uneven(8, 2101);
  blocks.check(true, false, true);
}

TEST_CASE_TEMPLATE("blocks are products of their own, added up by a balanced tree", T, float,
                   double) {
  for (const Sizes& size : {Sizes{1, 1, 1},
                            {2, 3, 40},
                            {15, 33, 64},
                            {14, 32, 96},
                            {29, 10, 17},
                            {7, 65, 600},
                            {3, 4, 0},
                            {0, 3, 4}})
    for (const std::int64_t count : {1, 2, 4, 8, 16, 64})
      for (const bool accumulate : {false, true}) {
        Case<T> product(size, true, false);
        product.blocks = uneven(count, size.k);
        product.check(accumulate, false);
      }
}

TEST_CASE_TEMPLATE("empty blocks count as +0", T, float, double) {
  Case<T> product({15, 18, 24}, true, false);
  for (const Blocks& blocks :
       {Blocks{0, 0, 24}, {0, 24, 24}, {0, 0, 0, 24, 24}, {0, 7, 7, 20, 24}}) {
    product.blocks = blocks;
    product.check(false, false);
    product.check(true, false);
  }
}

TEST_CASE_TEMPLATE("zeros of both signs, infinities and NaN in chain products", T, float, double) {
  const T infinity = std::numeric_limits<T>::infinity();
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      Case<T> product({15, 18, 6}, ta, tb);
      for (std::size_t i = 0; i < product.a.size(); i += 2) product.a[i] = i % 4 == 0 ? T(-0.0) : 0;
      for (std::size_t i = 1; i < product.b.size(); i += 3) product.b[i] = T(-0.0);
      for (std::size_t i = 0; i < product.c.size(); i += 2) product.c[i] = T(-0.0);
      for (T& x : product.bias) x = T(-0.0);
      product.check(false, false);
      product.check(true, false);
      product.check(false, true);
      product.a[5] = infinity;
      product.a[20] = std::numeric_limits<T>::quiet_NaN();
      product.b[7] = -infinity;
      product.check(false, false);
      product.check(true, false);
      if (!ta || tb) continue;
      product.blocks = {0, 1, 3, 3, 6};
      product.check(false, false);
      product.check(true, false);
    }
}

TEST_CASE_TEMPLATE("with chain products, matmul and linear give rows that know nothing of others",
                   T, float, double) {
  const ChainProducts chains;
  const std::int64_t n = 21, k = 530;
  const Case<T> product({40, n, k}, false, true);
  const Tensor x = tensor_of({40, k}, product.a), w = tensor_of({n, k}, product.b);
  const Tensor bias = tensor_of({n}, product.bias), all = Tensor::empty({40, n}, dtype_of<T>());
  linear(x, w, {bias}, all);
  CHECK(same_bits(all, tensor_of({40, n}, product.expected(false, true))));
  for (const std::int64_t rows : {1, 2, 17, 33}) {
    const Tensor some = Tensor::empty({rows, n}, dtype_of<T>());
    linear(x.slice(3, 3 + rows), w, {bias}, some);
    CHECK(same_bits(some, all.slice(3, 3 + rows)));
  }
  matmul(x, w, all, {.transpose_b = true});
  CHECK(same_bits(all, tensor_of({40, n}, product.expected(false, false))));
}

TEST_CASE("with chain products, f16 factors are multiplied as f32") {
  const ChainProducts chains;
  const std::int64_t n = 21, k = 530;
  const Case<float> product({40, n, k}, false, true);
  const Tensor x = tensor_of({40, k}, product.a), w = tensor_of({n, k}, product.b);
  const Tensor bias = tensor_of({n}, product.bias), all = Tensor::empty({40, n});
  const Tensor half_x = Tensor::empty({40, k}, DType::f16),
               half_w = Tensor::empty({n, k}, DType::f16);
  cast(x, half_x);
  cast(w, half_w);
  cast(half_x, x);
  cast(half_w, w);
  const Tensor of_halves = Tensor::empty({40, n});
  linear(half_x, half_w, {bias}, of_halves);
  linear(x, w, {bias}, all);
  CHECK(same_bits(of_halves, all));
}

TEST_CASE_TEMPLATE("matmul_blocks is the tree of the blocks' products", T, float, double) {
  const std::int64_t m = 5, n = 7, k = 40;
  const Tensor a = varied<T>({k, m}, 1), b = varied<T>({k, n}, 2);
  for (const bool chain : {false, true})
    for (const std::int64_t count : {1, 2, 8, 16, 32, 64})
      for (const bool accumulate : {false, true}) {
        CAPTURE(chain);
        CAPTURE(count);
        CAPTURE(accumulate);
        std::optional<ChainProducts> chains;
        if (chain) chains.emplace();
        const Blocks blocks = uneven(count, k);
        std::vector<std::vector<T>> parts;
        for (std::int64_t i = 0; i < count; ++i) {
          const Tensor part = nan<T>({m, n});
          const std::int64_t begin = blocks[at(i)], end = blocks[at(i + 1)];
          matmul(a.slice(begin, end), b.slice(begin, end), part, {.transpose_a = true});
          parts.push_back(part.template to_vector<T>());
        }
        for (; parts.size() > 1; parts.resize(parts.size() / 2))
          for (std::size_t i = 0; i < parts.size() / 2; ++i)
            for (std::size_t e = 0; e < parts[i].size(); ++e)
              parts[i][e] = parts[2 * i][e] + parts[2 * i + 1][e];
        const Tensor out = accumulate ? varied<T>({m, n}, 3) : nan<T>({m, n});
        if (accumulate)
          for (std::size_t e = 0; e < parts[0].size(); ++e)
            parts[0][e] = out.template to_vector<T>()[e] + parts[0][e];
        matmul_blocks(a, b, out, blocks, {.transpose_a = true, .accumulate = accumulate});
        check_close<T>(out, Values(parts[0].begin(), parts[0].end()), 0);
      }
}

TEST_CASE("matmul_blocks refuses what does not fit") {
  const Tensor a = varied<float>({6, 2}), b = varied<float>({6, 3}), out = nan<float>({2, 3});
  const auto with = [&](const Blocks& blocks) { matmul_blocks(a, b, out, blocks); };
  CHECK_THROWS_WITH_AS(with({0, 2, 4, 6}),
                       "[matmul_blocks] the number of blocks is a power of two up to 64, got 3",
                       ShapeError);
  CHECK_THROWS_WITH_AS(with({}),
                       "[matmul_blocks] the number of blocks is a power of two up to 64, got 0",
                       ShapeError);
  CHECK_THROWS_AS(with({0}), ShapeError);
  CHECK_THROWS_AS(with(Blocks(129, 0)), ShapeError);
  CHECK_THROWS_WITH_AS(with({0, 3, 5}), "[matmul_blocks] blocks go from row 0 to row 6, got 0 to 5",
                       ShapeError);
  CHECK_THROWS_AS(with({1, 3, 6}), ShapeError);
  CHECK_THROWS_WITH_AS(with({0, 4, 3, 5, 6}),
                       "[matmul_blocks] block 1 begins at row 4 and ends at row 3", ShapeError);
  const Blocks whole = {0, 6};
  CHECK_THROWS_WITH_AS(matmul_blocks(a, b, out, whole, {}),
                       "[matmul_blocks] takes transpose_a without transpose_b, got false and false",
                       UsageError);
  CHECK_THROWS_AS(matmul_blocks(a, b, out, whole, {.transpose_a = true, .transpose_b = true}),
                  UsageError);
  CHECK_THROWS_AS(matmul_blocks(a, varied<float>({5, 3}), out, whole), ShapeError);
  CHECK_THROWS_AS(matmul_blocks(a, b, nan<float>({3, 2}), whole), ShapeError);
  const Tensor half = Tensor::zeros({6, 2}, DType::f16, test_device());
  CHECK_THROWS_AS(
      matmul_blocks(half, half, Tensor::zeros({2, 2}, DType::f16, test_device()), whole),
      DTypeError);
  CHECK(std::isnan(to_values<float>(out)[0]));
}
