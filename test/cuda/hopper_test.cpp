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
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"

namespace hopper_cases {
namespace {

using namespace lockstep;
using namespace lockstep::kernels;
using lockstep::cuda::call;
namespace ladder = lockstep::kernels::cuda;
using ladder::HopperPlan, ladder::HopperTile;

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

enum class After { nothing, accumulate, bias, relu, bias_relu, positive };

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
  const Integers<float> bias(r.n, 3);
  const Integers<C> c(r.m * r.n, 4), positive(r.m * r.n, 5);
  const bool with_bias = after == After::bias || after == After::bias_relu;
  const bool with_relu = after == After::relu || after == After::bias_relu;
  const GemmProblem<T, C> problem{.m = r.m,
                                  .n = r.n,
                                  .k = r.k,
                                  .a = a.data(),
                                  .transpose_a = r.transpose_a,
                                  .b = b.data(),
                                  .transpose_b = r.transpose_b,
                                  .c = c.data(),
                                  .accumulate = after == After::accumulate,
                                  .bias = with_bias ? bias.data() : nullptr,
                                  .relu = with_relu,
                                  .positive = after == After::positive ? positive.data() : nullptr};
  CHECK(ladder::hopper_can(problem));
  product(problem);
  const std::vector<C> results = c.read();
  int wrong = 0;
  for (std::int64_t i = 0; i < r.m; ++i)
    for (std::int64_t j = 0; j < r.n; ++j) {
      const auto at = static_cast<std::size_t>(i * r.n + j);
      int sum = static_cast<int>(r.product.data<float>()[at]);
      if (after == After::accumulate) sum += c.values[at];
      if (with_bias) sum += bias.values[static_cast<std::size_t>(j)];
      if (with_relu) sum = std::max(sum, 0);
      if (after == After::positive && positive.values[at] <= 0) sum = 0;
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

/// With a given one.
auto by(const HopperPlan& plan) {
  return [plan]<class T, class C>(const GemmProblem<T, C>& problem) {
    if constexpr (std::is_same_v<T, float>)
      ladder::gemm_hopper_tf32(problem, plan, nullptr);
    else
      ladder::gemm_hopper_16(problem, plan, nullptr);
  };
}

constexpr bool flags[] = {false, true};
constexpr After afters[] = {After::nothing, After::accumulate, After::bias,
                            After::relu,    After::bias_relu,  After::positive};
constexpr HopperTile every_tile[] = {HopperTile::wide, HopperTile::square, HopperTile::flat,
                                     HopperTile::small};

/// All transposes of all types. Each type meets another end at each transpose, and at the next
/// `turn` others.
void check_everywhere(std::int64_t m, std::int64_t n, std::int64_t k, auto&& product,
                      int turn = 0) {
  for (const bool ta : flags)
    for (const bool tb : flags) {
      const Reference r = Reference{m, n, k, ta, tb}.compute();
      check_exact<BFloat16>(r, afters[turn++ % 6], product);
      check_exact<Half>(r, afters[turn++ % 6], product);
      check_exact<float>(r, afters[turn++ % 6], product);
      check_exact<BFloat16, float>(r, afters[turn++ % 6], product);
      check_exact<Half, float>(r, afters[turn++ % 6], product);
    }
}

/// All transposes, each of another type and with another end at the next `turn`.
void check_in_turns(std::int64_t m, std::int64_t n, std::int64_t k, int& turn, auto&& product) {
  for (const bool ta : flags)
    for (const bool tb : flags) {
      const Reference r = Reference{m, n, k, ta, tb}.compute();
      const After after = afters[turn % 6];
      switch (turn++ % 5) {
        case 0: check_exact<BFloat16>(r, after, product); break;
        case 1: check_exact<float>(r, after, product); break;
        case 2: check_exact<Half, float>(r, after, product); break;
        case 3: check_exact<BFloat16, float>(r, after, product); break;
        default: check_exact<Half>(r, after, product);
      }
    }
}

/// Of the blocks of a cluster together.
struct ClusterTile {
  explicit ClusterTile(HopperTile tile)
      : m(hopper_shape(tile).rows * hopper_shape(tile).cluster), n(hopper_shape(tile).columns) {}
  std::int64_t m, n;
};

}  // namespace

TEST_CASE("hopper: one tile and its tails") {
  check_everywhere(8, 8, 8, by_own_plan);
  check_everywhere(136, 72, 40, by_own_plan, 4);
}

TEST_CASE("hopper: several tiles, several rounds of the ring") {
  if (!ladder::hopper_available()) return;  // nothing new for the twins
  check_everywhere(136, 72, 344, by_own_plan, 2);
  // The ring of six stages goes round within a tile, and from one of several tiles to the next.
  constexpr HopperPlan small{HopperTile::small, 1};
  check_exact<BFloat16>(Reference{136, 72, 600, false, false}.compute(), After::bias, by(small));
  check_exact<Half>(Reference{264, 520, 72, false, true}.compute(), After::nothing, by(small));
  // Two bands of rows, the second one with a tail alone. A simulated GPU has four multiprocessors,
  // so that each cluster computes 2 to 9 of the 18 tiles.
  int turn = 0;
  for (const HopperTile tile : every_tile) {
    CAPTURE(static_cast<int>(tile));
    const ClusterTile one(tile);
    const After after = afters[turn % 6];
    const Reference r = Reference{8 * one.m + 8, one.n + 8, 8, turn % 2 == 0, false}.compute();
    if (turn++ % 2 == 0)
      check_exact<BFloat16>(r, after, by({tile, 1}));
    else
      check_exact<float>(r, after, by({tile, 1}));
  }
}

TEST_CASE("hopper: every tile, with whole sums and with slices") {
  if (!ladder::hopper_available()) return;  // the twins have no such plans
  int turn = 0;
  for (const HopperTile tile : every_tile) {
    CAPTURE(static_cast<int>(tile));
    const ClusterTile one(tile);
    // Nearly full: the bias has all columns, and all blocks of the cluster have rows. Two blocks of
    // k, or three, one with a tail.
    check_everywhere(one.m - 8, one.n - 8, 72, by({tile, 1}), static_cast<int>(tile));
    // Five, or nine.
    for (const int slices : {2, 3}) {
      CAPTURE(slices);
      check_in_turns(one.m - 8, one.n - 8, 264, turn, by({tile, slices}));
    }
  }
}

TEST_CASE("hopper: any k, where rows do not lie along it") {
  check_exact<BFloat16>(Reference{72, 72, 77, true, false}.compute(), After::bias, by_own_plan);
  check_exact<Half>(Reference{72, 72, 77, true, false}.compute(), After::accumulate, by_own_plan);
  check_exact<float>(Reference{72, 72, 77, true, false}.compute(), After::bias, by_own_plan);
}

TEST_CASE("hopper: many tiles, many rounds of the ring") {
  int multiprocessors = 0;
  call("test", "cudaDeviceGetAttribute",
       cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  if (!ladder::hopper_available() || multiprocessors < 64) {
    MESSAGE("skipped: it is for a real Hopper; a simulated one takes minutes");
    return;
  }
  int turn = 0;
  for (const HopperTile tile : every_tile) {
    CAPTURE(static_cast<int>(tile));
    check_everywhere(128, 256, 64, by({tile, 1}));  // full tiles, one or two stages
    check_everywhere(264, 520, 72, by({tile, 1}));  // tails of one row of chunks behind them
    // The ring goes round 10 times and more; in slices 3 times and more.
    check_in_turns(256, 512, 4104, turn, by({tile, 1}));
    check_in_turns(264, 520, 4104, turn, by({tile, 3}));
    // 90 wide tiles for 66 clusters, 1221 small ones for 264 blocks; two bands of rows and more.
    check_in_turns(2312, 2056, 136, turn, by({tile, 1}));
  }
}

TEST_CASE("hopper: a recorded step turns its matrices and adds its slices up in each replay") {
  const Device device{*gpu::kind(), 0};
  const std::int64_t m = 64, n = 72, k = 264;
  const auto values = [&](std::int64_t count, int seed) {
    const std::vector<int> all = integers(count, seed);
    return std::vector<float>(all.begin(), all.end());
  };
  const Tensor a = Tensor::of<float>({k, m}, values(k * m, 1)).to(device),
               b = Tensor::of<float>({k, n}, values(k * n, 2)).to(device),
               c = Tensor::empty({m, n}, DType::f32, device),
               d = Tensor::empty({m, n}, DType::f32, device);
  const auto into = [&](const Tensor& result) {
    return GemmProblem<float>{
        m, n, k, a.data<float>(), true, b.data<float>(), false, result.data<float>(), false};
  };
  StepGraph step(
      [&] {
        const cudaStream_t stream = lockstep::cuda::queue_of(c).stream;
        ladder::gemm_hopper_tf32(into(c), {HopperTile::small, 2}, stream);
        ladder::gemm_double_buffered(into(d), {2, 3}, stream);
      },
      device);
  for (int round = 0; round < 4; ++round) {
    CAPTURE(round);
    const Tensor now = Tensor::of<float>({k, n}, values(k * n, 10 + round));
    b.copy_from(now);
    CHECK(step() == (round > 0));
    const Tensor expected = Tensor::empty({m, n});
    matmul(a.to(Device{}), now, expected, {.transpose_a = true});
    CHECK(c.to_vector<float>() == expected.to_vector<float>());
    CHECK(d.to_vector<float>() == expected.to_vector<float>());
  }
}

TEST_CASE("hopper: the default is the faster of a rung and its twin") {
  const auto launches = [] {
    auto all = gpu::kernel_launches();
    return all["hopper_product_kernel"];
  };
  constexpr auto by_default = []<class T, class C>(const GemmProblem<T, C>& problem) {
    if constexpr (std::is_same_v<T, float>)
      ladder::gemm_tf32(problem, nullptr);
    else
      ladder::gemm(problem, nullptr);
  };
  const auto check = [&]<class T, class C>(const Reference& r, bool pays, T, C) {
    const std::uint64_t before = launches();
    check_exact<T, C>(r, After::nothing, by_default);
    CHECK(launches() - before == (pays && ladder::hopper_available() ? 1 : 0));
  };
  const Reference tiny = Reference{8, 8, 8, false, true}.compute(),
                  narrow = Reference{16, 16, 32768, false, true}.compute(),
                  more = Reference{64, 64, 1000, false, true}.compute();
  check(tiny, true, BFloat16(), BFloat16());
  check(more, true, Half(), 0.0f);
  check(tiny, false, 0.0f, 0.0f);
  check(narrow, false, BFloat16(), BFloat16());
  check(narrow, false, Half(), 0.0f);
  check(more, true, 0.0f, 0.0f);
}

TEST_CASE("hopper_sizes: which matrices are turned") {
  const auto sizes = []<class T>(T, bool ta, bool tb) {
    return ladder::hopper_sizes(GemmProblem<T>{3, 5, 7, nullptr, ta, nullptr, tb, nullptr, false});
  };
  for (const bool ta : flags)
    for (const bool tb : flags) {
      CHECK(sizes(0.0f, ta, tb).turns_a == ta);
      CHECK(sizes(0.0f, ta, tb).turns_b == !tb);
      CHECK_FALSE((sizes(Half(), ta, tb).turns_a || sizes(Half(), ta, tb).turns_b));
    }
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

}  // namespace hopper_cases
