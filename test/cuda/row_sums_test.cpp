// The sums of a factor's rows beside the product, on the rungs that make them. Of small integers,
// so that sums are exact in any order.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/support.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/kernels/cuda/gemm/hopper/hopper.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"

namespace row_sums_cases {
namespace {

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::kernels::cuda;
using lockstep::cuda::call;

/// `count` numbers in GPU memory.
template <class T>
class OnGpu {
 public:
  explicit OnGpu(const std::vector<T>& values) : bytes_(values.size() * sizeof(T)) {
    call("test", "cudaMalloc", cudaMalloc(&memory_, bytes_));
    call("test", "cudaMemcpy", cudaMemcpy(memory_, values.data(), bytes_, cudaMemcpyHostToDevice));
  }
  ~OnGpu() { (void)cudaFree(memory_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  T* data() const { return static_cast<T*>(memory_); }
  std::vector<T> read() const {
    std::vector<T> result(bytes_ / sizeof(T));
    call("test", "cudaMemcpy", cudaMemcpy(result.data(), memory_, bytes_, cudaMemcpyDeviceToHost));
    return result;
  }

 private:
  std::size_t bytes_;
  void* memory_ = nullptr;
};

template <class T>
std::vector<T> integers(std::int64_t count, int seed) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(T(static_cast<float>(std::floor(test::value_at(i, seed) * 2))));
  return values;
}

struct Size {
  std::int64_t m, n, k;
};

/// product(problem) enqueues it. The product has the same bits with sums as without.
template <class T, class C = T>
void check_sums(const Size& size, bool accumulate, auto&& product) {
  const auto [m, n, k] = size;
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(accumulate);
  const std::vector<T> a = integers<T>(k * m, 1);
  const std::vector<C> before = integers<C>(m, 3);
  const OnGpu<T> a_there(a), b(integers<T>(k * n, 2));
  const OnGpu<C> alone(integers<C>(m * n, 4)), beside(integers<C>(m * n, 5)), sums(before);
  GemmProblem<T, C> problem{.m = m,
                            .n = n,
                            .k = k,
                            .a = a_there.data(),
                            .transpose_a = true,
                            .b = b.data(),
                            .transpose_b = false,
                            .c = alone.data(),
                            .accumulate = false};
  product(problem);
  problem.c = beside.data();
  problem.row_sums = sums.data();
  problem.accumulate_row_sums = accumulate;
  product(problem);
  const std::vector<C> c = alone.read(), same = beside.read(), found = sums.read();
  CHECK(std::memcmp(c.data(), same.data(), c.size() * sizeof(C)) == 0);
  int wrong = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    const auto at = static_cast<std::size_t>(i);
    float sum = accumulate ? static_cast<float>(before[at]) : 0;
    for (std::int64_t row = 0; row < k; ++row)
      sum += static_cast<float>(a[static_cast<std::size_t>(row * m + i)]);
    const auto expected = static_cast<float>(C(sum));
    if (static_cast<float>(found[at]) != expected && ++wrong <= 3)
      FAIL_CHECK("the sum of row ", i, " is ", static_cast<float>(found[at]), " instead of ",
                 expected);
  }
  CHECK(wrong == 0);
}

/// Full tiles and tails, aligned rows and not, several tiles in both directions; a k that the ring
/// of tiles does not hold.
constexpr Size sizes[] = {{1, 1, 1}, {64, 72, 40}, {5, 300, 9}, {136, 264, 200}, {130, 67, 333}};

template <class T, class C = T, std::size_t N>
void check_rung(void (*product)(const GemmProblem<T, C>&, const Plan&, cudaStream_t),
                const TileSpeed (&)[N]) {
  for (int tile = 0; tile < static_cast<int>(N); ++tile)
    for (const int slices : {1, 3})
      for (const Size& size : sizes) {
        CAPTURE(tile);
        CAPTURE(slices);
        check_sums<T, C>(size, slices == 1, [&](const GemmProblem<T, C>& problem) {
          product(problem, {tile, slices}, nullptr);
        });
      }
}

}  // namespace

TEST_CASE("sums of rows: rungs 8 to 10, all tiles, whole and in slices") {
  check_rung<float>(gemm_double_buffered, double_buffered_speeds);
  check_rung<float>(gemm_tensor_tf32, tensor_tf32_speeds);
  check_rung<BFloat16>(gemm_tensor_16, tensor_16_speeds);
  check_rung<Half, float>(gemm_tensor_16, tensor_16_speeds);
}

TEST_CASE("sums of rows: the rungs that are chosen") {
  for (const Size& size : sizes) {
    check_sums<float>(size, true, [](const auto& problem) { gemm(problem, nullptr); });
    check_sums<float>(size, false, [](const auto& problem) { gemm_tf32(problem, nullptr); });
    check_sums<Half>(size, true, [](const auto& problem) { gemm(problem, nullptr); });
    check_sums<BFloat16, float>(size, false, [](const auto& problem) { gemm(problem, nullptr); });
  }
}

TEST_CASE("sums of rows: hopper, all tiles, whole and in slices") {
  if (!hopper_available()) return;  // its twins are above
  for (const HopperTile tile :
       {HopperTile::wide, HopperTile::square, HopperTile::flat, HopperTile::small})
    for (const int slices : {1, 2})
      for (const Size& size : {Size{72, 264, 200}, Size{264, 64, 136}}) {
        CAPTURE(static_cast<int>(tile));
        CAPTURE(slices);
        const HopperPlan plan{tile, slices};
        check_sums<BFloat16>(size, slices == 1,
                             [&](const auto& problem) { gemm_hopper_16(problem, plan, nullptr); });
        check_sums<Half, float>(size, slices == 2, [&](const auto& problem) {
          gemm_hopper_16(problem, plan, nullptr);
        });
        check_sums<float>(size, slices == 1,
                          [&](const auto& problem) { gemm_hopper_tf32(problem, plan, nullptr); });
      }
}

}  // namespace row_sums_cases
