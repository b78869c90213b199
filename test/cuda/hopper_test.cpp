/// Rungs 11 and 12 on a Hopper GPU, or a simulated one (LOCKSTEP_SIM_CAPABILITY=9.0), with problems
/// that only their own kernels see: many tiles per block, many rounds of the ring, tails in every
/// dimension. Elsewhere they are their twins, for which the same tests hold.
///
/// Inputs are integers of -4 to 3, so that products and sums are exact in every format on the way:
/// the results must be equal, and an index that is wrong anywhere shows, however small its part.

#include "lockstep/kernels/cuda/gemm/hopper/hopper.h"

#include <cuda_runtime.h>

#include "kernels/support.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"

using namespace lockstep;
using namespace lockstep::kernels;
using lockstep::cuda::call;
namespace ladder = lockstep::kernels::cuda;

namespace {

/// Small integers, always the same.
std::vector<int> integers(std::int64_t count, int seed) {
  std::vector<int> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<int>(std::floor(test::value_at(i, seed) * 2)));
  return values;
}

/// `count` small integers in GPU memory, and the same here.
template <class T>
class Integers {
 public:
  Integers(std::int64_t count, int seed) : values(integers(count, seed)) {
    const std::vector<T> stored = as_stored();
    call("test", "cudaMalloc", cudaMalloc(&memory_, bytes()));
    call("test", "cudaMemcpy", cudaMemcpy(memory_, stored.data(), bytes(), cudaMemcpyHostToDevice));
  }
  ~Integers() { (void)cudaFree(memory_); }
  Integers(const Integers&) = delete;
  Integers& operator=(const Integers&) = delete;

  T* data() const { return static_cast<T*>(memory_); }
  std::vector<T> read() const {
    std::vector<T> result(values.size());
    call("test", "cudaMemcpy", cudaMemcpy(result.data(), memory_, bytes(), cudaMemcpyDeviceToHost));
    return result;
  }

  std::vector<int> values;

 private:
  std::vector<T> as_stored() const {
    std::vector<T> result;
    for (const int value : values) result.push_back(T(static_cast<float>(value)));
    return result;
  }
  std::size_t bytes() const { return values.size() * sizeof(T); }

  void* memory_ = nullptr;
};

/// op(a) op(b), by the processor: the same for all types, so it is made once. Exact in f32.
struct Reference {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b;
  Tensor product{};  // (m, n)

  Reference& compute() {
    const auto factor = [](std::int64_t rows, std::int64_t columns, int seed) {
      const std::vector<int> values = integers(rows * columns, seed);
      const Tensor tensor = Tensor::empty({rows, columns});
      std::ranges::copy(values, tensor.data<float>());
      return tensor;
    };
    product = Tensor::empty({m, n});
    matmul(transpose_a ? factor(k, m, 1) : factor(m, k, 1),
           transpose_b ? factor(n, k, 2) : factor(k, n, 2), product,
           {.transpose_a = transpose_a, .transpose_b = transpose_b});
    return *this;
  }
};

enum class After { nothing, accumulate, bias };

/// product(problem) enqueues it.
template <class T, class C = T, class Product>
void check_exact(const Reference& r, After after, Product&& product) {
  CAPTURE(r.m);
  CAPTURE(r.n);
  CAPTURE(r.k);
  CAPTURE(r.transpose_a);
  CAPTURE(r.transpose_b);
  CAPTURE(static_cast<int>(after));
  const Integers<T> a(r.m * r.k, 1), b(r.k * r.n, 2);
  const Integers<C> bias(r.n, 3), c(r.m * r.n, 4);
  const GemmProblem<T, C> problem{.m = r.m,
                                  .n = r.n,
                                  .k = r.k,
                                  .a = a.data(),
                                  .transpose_a = r.transpose_a,
                                  .b = b.data(),
                                  .transpose_b = r.transpose_b,
                                  .c = c.data(),
                                  .accumulate = after == After::accumulate,
                                  .bias = after == After::bias ? bias.data() : nullptr};
  CHECK(ladder::hopper_can(problem));
  product(problem);
  const std::vector<C> results = c.read();
  int wrong = 0;
  for (std::int64_t i = 0; i < r.m; ++i)
    for (std::int64_t j = 0; j < r.n; ++j) {
      const auto at = static_cast<std::size_t>(i * r.n + j);
      int sum = static_cast<int>(r.product.data<float>()[at]);
      if (after == After::accumulate) sum += c.values[at];
      if (after == After::bias) sum += bias.values[static_cast<std::size_t>(j)];
      const auto expected = static_cast<float>(C(static_cast<float>(sum)));
      const auto result = static_cast<float>(results[at]);
      if (result != expected && ++wrong <= 3)
        FAIL_CHECK("c[", i, "][", j, "] = ", result, " instead of ", expected);
    }
  CHECK(wrong == 0);
}

/// Rung 11 or 12, with the plan that it makes.
constexpr auto by_own_plan = []<class T, class C>(const GemmProblem<T, C>& problem) {
  if constexpr (std::is_same_v<T, float>)
    ladder::gemm_hopper_tf32(problem, nullptr);
  else
    ladder::gemm_hopper_16(problem, nullptr);
};

/// All four transposes, each with another end.
void check_everywhere(std::int64_t m, std::int64_t n, std::int64_t k) {
  constexpr After afters[] = {After::nothing, After::accumulate, After::bias};
  int turn = 0;
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      const Reference r = Reference{m, n, k, ta, tb}.compute();
      check_exact<BFloat16>(r, afters[turn++ % 3], by_own_plan);
      check_exact<Half>(r, afters[turn++ % 3], by_own_plan);
      check_exact<float>(r, afters[turn++ % 3], by_own_plan);
      check_exact<BFloat16, float>(r, afters[turn % 3], by_own_plan);
      check_exact<Half, float>(r, afters[(turn + 1) % 3], by_own_plan);
    }
}

/// One tile of a cluster and some, with sums cut into `slices`: all transposes, and in turns all
/// types and ends.
void check_plan(const ladder::HopperPlan& plan, int& turn) {
  CAPTURE(static_cast<int>(plan.tile));
  CAPTURE(plan.slices);
  const ladder::HopperShape shape = ladder::hopper_shape(plan.tile);
  constexpr After afters[] = {After::nothing, After::accumulate, After::bias};
  const auto product = [&]<class T, class C>(const GemmProblem<T, C>& problem) {
    if constexpr (std::is_same_v<T, float>)
      ladder::gemm_hopper_tf32(problem, plan, nullptr);
    else
      ladder::gemm_hopper_16(problem, plan, nullptr);
  };
  for (const bool ta : {false, true})
    for (const bool tb : {false, true}) {
      const After after = afters[turn / 5 % 3];
      const std::int64_t m = shape.rows + 8, n = shape.columns + 8;
      const Reference r = Reference{m, n, 264, ta, tb}.compute();  // 5 or 9 blocks, one with a tail
      switch (turn++ % 5) {
        case 0: check_exact<BFloat16>(r, after, product); break;
        case 1: check_exact<float>(r, after, product); break;
        case 2: check_exact<Half, float>(r, after, product); break;
        case 3: check_exact<BFloat16, float>(r, after, product); break;
        default: check_exact<Half>(r, after, product);
      }
    }
}

/// Of a layer with `width` inputs and outputs: y = x w^T, the gradient of w, and that of x.
std::vector<ladder::HopperSizes> layer(std::int64_t batch, std::int64_t width, int bytes) {
  const bool turns = bytes == 4;
  return {{batch, width, width, bytes, bytes, false, false},
          {width, width, batch, bytes, 4, turns, turns},
          {batch, width, width, bytes, bytes, false, turns}};
}

}  // namespace

TEST_CASE("hopper: one tile and its tails") {
  check_everywhere(8, 8, 8);
  check_everywhere(136, 72, 40);
}

TEST_CASE("hopper: several tiles, several rounds of the ring") {
  if (!ladder::hopper_available()) return;  // nothing new for the twins
  check_everywhere(136, 72, 344);           // the ring goes round more than once
  // Three columns of tiles, and two of 256 rows: with four multiprocessors, three tiles per
  // cluster.
  check_exact<BFloat16>(Reference{264, 520, 72, false, false}.compute(), After::bias, by_own_plan);
  check_exact<float>(Reference{264, 520, 36, true, false}.compute(), After::accumulate,
                     by_own_plan);
  check_exact<Half, float>(Reference{264, 516, 72, false, true}.compute(), After::accumulate,
                           by_own_plan);
}

TEST_CASE("hopper: every tile, with whole sums and with slices") {
  using enum ladder::HopperTile;
  if (!ladder::hopper_available()) return;  // the twins have no plans
  int turn = 0;
  for (const int slices : {1, 2, 3})
    for (const ladder::HopperTile tile : {wide, square, flat, small})
      check_plan({tile, slices}, turn);
}

TEST_CASE("hopper: the plan of a training step's products") {
  using enum ladder::HopperTile;
  using ladder::HopperPlan, ladder::hopper_plan;
  // Large results: the widest tiles. Smaller ones: tiles for all multiprocessors.
  CHECK(hopper_plan({4096, 4096, 4096, 2, 2, false, false}) == HopperPlan{wide, 1});
  CHECK(hopper_plan({2048, 2048, 1024, 2, 4, false, false}) == HopperPlan{wide, 1});
  CHECK(hopper_plan({1024, 2048, 2048, 2, 2, false, false}) == HopperPlan{square, 1});
  CHECK(hopper_plan({1024, 1024, 1024, 2, 2, false, false}) == HopperPlan{flat, 1});
  CHECK(hopper_plan({128, 512, 784, 2, 2, false, false}) == HopperPlan{small, 1});
  // Few results and long sums: slices.
  CHECK(hopper_plan({256, 256, 8192, 2, 4, false, false}).slices > 1);
  // Two matrices to turn over, for short sums, or a large one for few results: the twin.
  for (const ladder::HopperSizes& sizes :
       {ladder::HopperSizes{512, 512, 128, 4, 4, true, true}, {128, 4096, 4096, 4, 4, false, true}})
    CHECK_FALSE(hopper_pays(sizes, hopper_plan(sizes)));
  constexpr ladder::HopperSizes as_it_lies{128, 4096, 4096, 4, 4, false, false};
  CHECK(hopper_pays(as_it_lies, hopper_plan(as_it_lies)));
}

TEST_CASE("hopper: a plan is the fastest by its own estimate, and leaves no slice empty") {
  using enum ladder::HopperTile;
  for (const int bytes : {2, 4})
    for (const std::int64_t batch : {1, 128, 1024, 8192})
      for (std::int64_t width = 64; width <= 8192; width *= 2)
        for (const ladder::HopperSizes& sizes : layer(batch, width, bytes)) {
          const ladder::HopperPlan plan = ladder::hopper_plan(sizes);
          for (const ladder::HopperTile tile : {wide, square, flat, small})
            CHECK(hopper_cycles(sizes, plan) <= hopper_cycles(sizes, {tile, 1}));
          CHECK(plan.slices >= 1);
          CHECK((plan.slices == 1 || sizes.k * bytes / 128 >= plan.slices));
        }
}

TEST_CASE("hopper: many tiles, many rounds of the ring") {
  int multiprocessors = 0;
  call("test", "cudaDeviceGetAttribute",
       cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  // Of real GPUs: a simulated one has four, and takes minutes.
  if (!ladder::hopper_available() || multiprocessors < 64) return;
  check_everywhere(128, 256, 64);     // one full tile of a block, one stage
  check_everywhere(264, 520, 72);     // tails of one row of chunks behind full tiles
  check_everywhere(256, 512, 4104);   // the ring goes round 16 times
  check_everywhere(2312, 2056, 136);  // 90 tiles for 66 clusters, two bands of rows
}

TEST_CASE("hopper_can: rows at multiples of 16 bytes, for all three matrices") {
  alignas(16) static float storage[8] = {};
  const auto can = [](std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb, int a,
                      int b, int c) {
    return ladder::hopper_can(
        GemmProblem<float>{m, n, k, storage + a, ta, storage + b, tb, storage + c, false});
  };
  CHECK(can(4, 8, 12, false, false, 0, 0, 0));
  CHECK(can(3, 8, 12, false, true, 4, 4, 4));
  CHECK_FALSE(can(4, 8, 12, false, false, 1, 0, 0));
  CHECK_FALSE(can(4, 8, 12, false, false, 0, 2, 0));
  CHECK_FALSE(can(4, 8, 12, false, false, 0, 0, 3));
  CHECK_FALSE(can(4, 6, 12, false, true, 0, 0, 0));   // rows of c
  CHECK_FALSE(can(3, 8, 12, true, false, 0, 0, 0));   // rows of a, which lies as (k, m)
  CHECK_FALSE(can(4, 8, 10, false, false, 0, 0, 0));  // rows of a
  CHECK(can(4, 8, 10, true, false, 0, 0, 0));         // nothing lies along k
  CHECK_FALSE(can(4, 8, 10, true, true, 0, 0, 0));    // rows of b, which lies as (n, k)
  CHECK_FALSE(can(std::int64_t{1} << 31, 8, 12, false, false, 0, 0, 0));
}
