// Chain products touch their operands and their own memory alone: all of it ends at a page that
// nobody may touch. Who does crashes.

#include <thread>

#include "kernels/guard/guarded_memory.h"
#include "kernels/support.h"
#include "lockstep/kernels/cpu/chain/multiply.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

struct GuardedSizes {
  std::int64_t m, n, k;
};

/// Tiles, panels and vectors that are full and not, for every set of vectors (4 x 2, 6 x 16,
/// 14 x 32; of f64 6 x 8, 14 x 16); few and many of them; what is packed fills whole cache lines.
const GuardedSizes guarded_sizes[] = {{1, 1, 1},     {3, 5, 2},     {6, 17, 16},  {14, 33, 16},
                                      {13, 31, 32},  {14, 400, 16}, {6, 200, 16}, {13, 401, 16},
                                      {400, 14, 16}, {200, 6, 32},  {29, 47, 48}, {61, 63, 16},
                                      {9, 9, 530},   {200, 210, 16}};

template <class T>
std::vector<T> guarded_numbers(std::int64_t n, int seed) {
  std::vector<T> result(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    result[static_cast<std::size_t>(i)] = static_cast<T>(value_at(i, seed));
  return result;
}

/// The product in guarded memory; on a thread of its own, whose scratch memory is new and guarded.
template <class T, class F>
std::vector<T> guarded_product(const GuardedSizes& s, bool ta, bool tb, bool accumulate,
                               bool with_bias, std::span<const std::int64_t> blocks, bool from_end,
                               F multiply) {
  const GuardedArray<T> a(guarded_numbers<T>(s.m * s.k, 1), from_end),
      b(guarded_numbers<T>(s.k * s.n, 2), from_end), c(guarded_numbers<T>(s.m * s.n, 3), from_end),
      bias(guarded_numbers<T>(s.n, 4), from_end);
  std::thread([&] {
    const GuardedArrays scratch;
    multiply(GemmProblem<T>{s.m, s.n, s.k, a.data(), ta, b.data(), tb, c.data(), accumulate,
                            with_bias ? bias.data() : nullptr},
             blocks);
  }).join();
  return c.values();
}

}  // namespace

TEST_CASE_TEMPLATE("guard: a chain product touches no element beyond its operands and its scratch",
                   T, float, double) {
  const auto fast = [](const GemmProblem<T>& problem, std::span<const std::int64_t> blocks) {
    cpu::chain_gemm(problem, blocks);
  };
  for (const GuardedSizes& size : guarded_sizes)
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const int kind : {0, 1, 2, 3}) {  // plain, added to C, with a bias, by blocks
          if (kind == 3 ? !ta || tb : kind > 0 && ta != tb) continue;
          CAPTURE(size.m);
          CAPTURE(size.n);
          CAPTURE(size.k);
          CAPTURE(ta);
          CAPTURE(tb);
          CAPTURE(kind);
          const std::vector<std::int64_t> blocks =
              kind == 3 ? std::vector<std::int64_t>{0, size.k / 3, size.k}
                        : std::vector<std::int64_t>{};
          const auto product = [&](bool from_end, auto multiply) {
            return guarded_product<T>(size, ta, tb, kind == 1, kind == 2, blocks, from_end,
                                      multiply);
          };
          const std::vector<T> result = product(true, fast);
          if (kind == 0) CHECK(result == product(false, fast));
#ifdef LOCKSTEP_CHAIN_AVX2
          CHECK(result == product(true, chain::multiply<chain::Avx2<T>>));
#endif
          if (size.m * size.n < 3000)
            CHECK(result == product(true, chain::multiply<chain::Scalar<T>>));
        }
}
