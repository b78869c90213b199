// The sums of a factor's rows beside the product, on the rungs that make them. Of small integers,
// so that sums are exact in any order.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/support.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/gpu/gpu.h"
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

// In a cluster or through scratch memory, which it is depends on the GPU; the bits do not. Numbers
// whose sums are rounded: the order shows.
TEST_CASE("sums of rows and products: slices are added up in ascending order, on every rung") {
  const Device device{*gpu::kind(), 0};
  const auto check = [&]<class T>(T, std::int64_t m, std::int64_t n, std::int64_t k, int slices,
                                  std::int64_t depth, auto&& product) {
    CAPTURE(m);
    CAPTURE(n);
    CAPTURE(k);
    CAPTURE(slices);
    const DType dtype = sizeof(T) == 4 ? DType::f32 : DType::f16;
    const auto drawn = [&](std::int64_t rows, std::int64_t columns, int seed) {
      const Tensor x = Tensor::empty({rows, columns});
      for (std::int64_t i = 0; i < x.numel(); ++i)
        x.data<float>()[i] = static_cast<float>(test::value_at(i, seed));
      return lockstep::cast(x, dtype).to(device);
    };
    // op(a) (m, k) lies as (k, m): a slice of k is a piece of both factors.
    const Tensor a = drawn(k, m, 1), b = drawn(k, n, 2);
    const auto into = [&](std::int64_t begin, std::int64_t end, const Tensor& c,
                          const Tensor& rows) {
      return GemmProblem<T, float>{.m = m,
                                   .n = n,
                                   .k = end - begin,
                                   .a = a.slice(begin, end).template data<T>(),
                                   .transpose_a = true,
                                   .b = b.slice(begin, end).template data<T>(),
                                   .transpose_b = false,
                                   .c = c.data<float>(),
                                   .accumulate = false,
                                   .row_sums = rows.data<float>()};
    };
    const auto run = [&](std::int64_t begin, std::int64_t end, int cut) {
      const Tensor c = Tensor::empty({m, n}, DType::f32, device);
      const Tensor rows = Tensor::empty({m}, DType::f32, device);
      product(into(begin, end, c, rows), cut, lockstep::cuda::queue_of(c).stream);
      std::vector<float> both = c.to_vector<float>();
      for (const float sum : rows.to_vector<float>()) both.push_back(sum);
      return both;
    };
    std::vector<float> expected = run(0, depth, 1);
    for (std::int64_t begin = depth; begin < k; begin += depth) {
      const std::vector<float> slice = run(begin, std::min(k, begin + depth), 1);
      for (std::size_t i = 0; i < slice.size(); ++i) expected[i] += slice[i];
    }
    CHECK(run(0, k, slices) == expected);
  };
  const auto on_rung_8 = [](int tile) {
    return [tile](const auto& p, int slices, cudaStream_t stream) {
      gemm_double_buffered(p, {tile, slices}, stream);
    };
  };
  check(0.0f, 132, 136, 3 * 32 + 5, 3, 40, on_rung_8(0));
  check(0.0f, 65, 68, 2 * 32 + 9, 2, 40, on_rung_8(1));
  check(0.0f, 37, 33, 8 * 80 - 3, 8, 80, on_rung_8(2));
  for (const int tile : {0, 1}) {
    check(0.0f, 68, 72, 4 * 64 + 8, 4, 80, [tile](const auto& p, int slices, cudaStream_t stream) {
      gemm_tensor_tf32(p, {tile, slices}, stream);
    });
    check(Half(), 136, 67, 3 * 128 + 8, 3, 160,
          [tile](const auto& p, int slices, cudaStream_t stream) {
            gemm_tensor_16(p, Plan{tile, slices}, stream);
          });
  }
  if (!hopper_available()) return;
  for (const HopperTile tile :
       {HopperTile::wide, HopperTile::square, HopperTile::flat, HopperTile::small}) {
    CAPTURE(static_cast<int>(tile));
    const HopperShape shape = hopper_shape(tile);
    const std::int64_t rows = shape.rows * shape.cluster, columns = shape.columns;
    const int slices = tile == HopperTile::small ? 8 : 4;
    check(Half(), rows + 8, columns - 8, slices * 128 - 8, slices, 128,
          [tile](const auto& p, int cut, cudaStream_t stream) {
            gemm_hopper_16(p, HopperPlan{tile, cut}, stream);
          });
    check(0.0f, rows - 8, columns + 8, slices * 64 - 7, slices, 64,
          [tile](const auto& p, int cut, cudaStream_t stream) {
            gemm_hopper_tf32(p, HopperPlan{tile, cut}, stream);
          });
  }
}

}  // namespace row_sums_cases
