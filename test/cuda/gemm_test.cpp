#include <cuda_runtime.h>

#include <cstring>

#include "kernels/support.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"

namespace gemm_cases {
namespace {

using namespace lockstep;
using lockstep::cuda::call;
using lockstep::kernels::GemmProblem;
using namespace lockstep::kernels::cuda;

/// `values` in GPU memory, beginning `offset` elements after an aligned address, where a NaN lies.
/// The allocation ends with them.
template <class T>
class OnDevice {
 public:
  OnDevice(const std::vector<T>& values, std::size_t offset)
      : size_(values.size()), offset_(offset) {
    std::vector<T> all(offset, T(std::numeric_limits<float>::quiet_NaN()));
    all.insert(all.end(), values.begin(), values.end());
    call("test", "cudaMalloc", cudaMalloc(&memory_, all.size() * sizeof(T)));
    call("test", "cudaMemcpy",
         cudaMemcpy(memory_, all.data(), all.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~OnDevice() { (void)cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return static_cast<T*>(memory_) + offset_; }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    call("test", "cudaMemcpy",
         cudaMemcpy(values.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t size_, offset_;
  void* memory_ = nullptr;
};

template <class T>
std::vector<T> varied_values(std::int64_t count, int seed) {
  std::vector<T> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(T(test::value_at(i, seed)));
  return values;
}

enum class Then { nothing, accumulate, bias, relu, bias_relu, positive };

struct Case {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  Then then = Then::nothing;
  std::size_t offset = 0;       ///< in elements, of all pointers
  std::size_t bias_offset = 0;  ///< in addition, of what the epilogue reads
};

template <class T, class C = T>
using Product = void (*)(const GemmProblem<T, C>&, cudaStream_t);
template <class T, class C = T>
using PlannedProduct = void (*)(const GemmProblem<T, C>&, const Plan&, cudaStream_t);

/// What one case computes, and what it should: three loops in f64.
template <class T, class C = T>
class Trial {
 public:
  explicit Trial(const Case& c)
      : case_(c),
        a_(varied_values<T>(c.m * c.k, 1)),
        b_(varied_values<T>(c.k * c.n, 2)),
        bias_(varied_values<kernels::SumOf<C>>(c.n, 3)),
        positive_(varied_values<C>(c.m * c.n, 5)),
        before_(c.then == Then::accumulate
                    ? varied_values<C>(c.m * c.n, 4)
                    : std::vector<C>(static_cast<std::size_t>(c.m * c.n),
                                     C(std::numeric_limits<float>::quiet_NaN()))) {}

  /// product(problem) enqueues it.
  std::vector<C> run(auto&& product) const {
    const OnDevice<T> a(a_, case_.offset), b(b_, case_.offset);
    const std::size_t other_offset = case_.offset + case_.bias_offset;
    const OnDevice<C> c(before_, case_.offset);
    const OnDevice<kernels::SumOf<C>> bias(bias_, other_offset);
    const OnDevice<C> positive(positive_, other_offset);
    product(GemmProblem<T, C>{case_.m, case_.n, case_.k, a.data(), case_.transpose_a, b.data(),
                              case_.transpose_b, c.data(), case_.then == Then::accumulate,
                              has_bias() ? bias.data() : nullptr, has_relu(),
                              case_.then == Then::positive ? positive.data() : nullptr});
    return c.read();
  }

  bool has_bias() const { return case_.then == Then::bias || case_.then == Then::bias_relu; }
  bool has_relu() const { return case_.then == Then::relu || case_.then == Then::bias_relu; }

  /// |error| <= `relative` * (the sum of the magnitudes of what is added up) + half a unit in the
  /// last place of C, for every element.
  void compare(const std::vector<C>& results, double relative) const {
    const auto [m, n, k] = std::tuple(case_.m, case_.n, case_.k);
    const std::int64_t a_row = case_.transpose_a ? 1 : k, a_depth = case_.transpose_a ? m : 1;
    const std::int64_t b_column = case_.transpose_b ? k : 1, b_depth = case_.transpose_b ? 1 : n;
    const std::vector<double> a(a_.begin(), a_.end()), b(b_.begin(), b_.end());
    int wrong = 0;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0, magnitude = 0;
        const auto add = [&](double x) {
          sum += x;
          magnitude += std::abs(x);
        };
        const double *x = a.data() + i * a_row, *y = b.data() + j * b_column;
        for (std::int64_t l = 0; l < k; ++l, x += a_depth, y += b_depth) {
          const double product = *x * *y;  // not by add(): most of the time is spent here
          sum += product;
          magnitude += product < 0 ? -product : product;
        }
        if (case_.then == Then::accumulate) add(at(before_, i * n + j));
        if (has_bias()) add(at(bias_, j));
        if (has_relu()) sum = std::max(sum, 0.0);
        if (case_.then == Then::positive && at(positive_, i * n + j) <= 0) sum = 0;
        const double result = at(results, i * n + j);
        const double tolerance = relative * magnitude + rounding() * std::abs(sum);
        if (!(std::abs(result - sum) <= tolerance) && ++wrong <= 3)
          FAIL_CHECK("c[", i, "][", j, "] = ", result, " instead of ", sum, " +- ", tolerance);
      }
    CHECK(wrong == 0);
  }

 private:
  static double at(const auto& values, std::int64_t i) {
    return static_cast<double>(values[static_cast<std::size_t>(i)]);
  }
  /// Half a unit in the last place, and a little for the error of the sum that is rounded.
  static constexpr double rounding() {
    if constexpr (std::is_same_v<C, BFloat16>)
      return 1.01 * 0x1p-8;
    else if constexpr (std::is_same_v<C, Half>)
      return 1.01 * 0x1p-11;
    else
      return 0;
  }

  Case case_;
  std::vector<T> a_, b_;
  std::vector<kernels::SumOf<C>> bias_;
  std::vector<C> positive_, before_;
};

/// What k additions, one after the other in whatever order, may lose of the sum of magnitudes: k
/// roundings of half a unit each (Higham, "Accuracy and Stability of Numerical Algorithms", section
/// 4.2), or of a whole unit on tensor cores, which cut off. tf32 rounds both factors to 11 bits.
template <class T>
double bound(std::int64_t k, bool tf32) {
  const double additions = static_cast<double>(k) + 2;
  if (std::is_same_v<T, double>) return additions * 0x1p-53;
  if (std::is_same_v<T, float> && !tf32) return additions * 0x1p-24;
  return additions * 0x1p-23 + (tf32 ? 0x1.01p-10 : 0);
}

template <class T, class C>
void check_run(auto&& product, const Case& c, bool tf32) {
  CAPTURE(c.m);
  CAPTURE(c.n);
  CAPTURE(c.k);
  CAPTURE(c.transpose_a);
  CAPTURE(c.transpose_b);
  CAPTURE(static_cast<int>(c.then));
  CAPTURE(c.offset);
  CAPTURE(c.bias_offset);
  const Trial<T, C> trial(c);
  trial.compare(trial.run(product), bound<T>(c.k, tf32));
}

template <class T, class C = T>
void check_product(Product<T, C> product, const Case& c, bool tf32 = false) {
  check_run<T, C>([&](const GemmProblem<T, C>& problem) { product(problem, nullptr); }, c, tf32);
}

template <class T, class C = T>
void check_plan(PlannedProduct<T, C> product, const Plan& plan, const Case& c, bool tf32 = false) {
  CAPTURE(plan.tile);
  CAPTURE(plan.slices);
  check_run<T, C>([&](const GemmProblem<T, C>& problem) { product(problem, plan, nullptr); }, c,
                  tf32);
}

constexpr bool flags[] = {false, true};
constexpr Then thens[] = {Then::nothing, Then::accumulate, Then::bias,
                          Then::relu,    Then::bias_relu,  Then::positive};

template <class T, class C>
void check_all_kinds(Product<T, C> product, bool tf32 = false) {
  // The last two have rows of multiples of 16 bytes, and one does not fill its tiles.
  const std::int64_t sizes[][3] = {{1, 1, 1},      {3, 5, 7},    {17, 9, 33},  {128, 10, 256},
                                   {129, 65, 130}, {64, 64, 64}, {72, 136, 40}};
  std::size_t turn = 0;  // every transpose meets every way to end, aligned and not
  for (const auto& [m, n, k] : sizes) {
    for (const bool ta : flags)
      for (const bool tb : flags) {
        const std::size_t offset = turn % 2;
        check_product<T, C>(product, {m, n, k, ta, tb, thens[turn % 6], offset}, tf32);
        if (m % 8 == 0 && n % 8 == 0)
          check_product<T, C>(product, {m, n, k, ta, tb, thens[turn % 6], 1 - offset}, tf32);
        ++turn;
      }
    ++turn;  // 5 turns per shape: the transposes meet other ends and offsets at the next
  }
  // A bias, and a matrix, that are less aligned than c.
  check_product<T, C>(product, {72, 136, 40, false, false, Then::bias_relu, 0, 1}, tf32);
  check_product<T, C>(product, {72, 136, 40, false, false, Then::positive, 0, 1}, tf32);
}

/// A rung that has these sizes of tiles: of each, tiles that are full, and some that are not, in
/// both directions; whole sums and slices. All transposes, each with another end at the next size.
template <class T, class C = T, std::size_t N>
void check_tiles(PlannedProduct<T, C> product, const TileSpeed (&speeds)[N], bool tf32 = false) {
  std::size_t turn = 0;
  for (int tile = 0; tile < static_cast<int>(N); ++tile) {
    const TileSpeed& s = speeds[tile];
    for (const bool ta : flags)
      for (const bool tb : flags) {
        const auto then = [&turn] { return thens[turn++ % 6]; };
        const std::size_t offset = ta != tb ? 1 : 0;
        const std::int64_t m = s.rows, n = s.columns, k = 4 * s.depth;
        // Rows of multiples of 16 bytes, which begin at one or not; the ring of four tiles goes
        // round.
        check_plan<T, C>(product, {tile, 1}, {m + 8, n, k + 8, ta, tb, then(), offset}, tf32);
        check_plan<T, C>(product, {tile, 1}, {m - 5, n + 3, 13, ta, tb, then()}, tf32);
        check_plan<T, C>(product, {tile, 2}, {9, n - 8, 2 * k + 3, ta, tb, then()}, tf32);
        turn += 2;  // 5 in all: each plan meets each end
      }
  }
}

/// Many of them lie halfway between two numbers of f16, or of bf16.
std::vector<float> halfway_values(std::int64_t count, int seed) {
  std::vector<float> values = varied_values<float>(count, seed);
  for (float& value : values) value = std::floor(value * 0x1p11f) * 0x1p-11f;
  return values;
}

/// Rung 10 with factors of f32, one or both, at these offsets: it has the bits of cast ones.
template <class T, class C>
void check_rounding(const Case& c, int slices, std::size_t offset_a, std::size_t offset_b) {
  const std::vector<float> a_values = halfway_values(c.m * c.k, 1);
  const std::vector<float> b_values = halfway_values(c.k * c.n, 2);
  const OnDevice<float> a(a_values, offset_a), b(b_values, offset_b);
  const OnDevice<T> a_cast({a_values.begin(), a_values.end()}, offset_b);
  const OnDevice<T> b_cast({b_values.begin(), b_values.end()}, offset_a);
  const Trial<T, C> trial(c);
  const auto run = [&](bool a_f32, bool b_f32) {
    const OnDevice<C> sums(varied_values<C>(c.m, 6), c.offset);
    std::vector<C> all = trial.run([&](GemmProblem<T, C> problem) {
      problem.a = a_f32 ? nullptr : a_cast.data();
      problem.b = b_f32 ? nullptr : b_cast.data();
      problem.a_f32 = a_f32 ? a.data() : nullptr;
      problem.b_f32 = b_f32 ? b.data() : nullptr;
      if (c.transpose_a && !c.transpose_b) problem.row_sums = sums.data();
      gemm_tensor_16(problem, {a_f32 || b_f32 ? 0 : 1, slices}, nullptr);
    });
    const std::vector<C> rows = sums.read();
    all.insert(all.end(), rows.begin(), rows.end());
    return all;
  };
  const std::vector<C> expected = run(false, false);
  for (const auto& [a_f32, b_f32] : {std::pair{true, true}, {true, false}, {false, true}}) {
    CAPTURE(a_f32 + 2 * b_f32);
    if (rounds_in_layout(c.transpose_a, c.transpose_b, b_f32, std::is_same_v<C, float>)) {
      const std::vector<C> found = run(a_f32, b_f32);
      CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(C)) == 0);
    } else {
      CHECK_THROWS_AS(run(a_f32, b_f32), UsageError);
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("every rung agrees with three loops", T, float, double, BFloat16, Half) {
  for (const Rung<T>& rung : rungs<T>()) {
    CAPTURE(rung.name);
    check_all_kinds<T, T>(rung.run, rung.tf32);
  }
}

TEST_CASE("products of 16-bit factors into f32, on every rung that has them" *
          doctest::test_suite("not-races")) {  // "every rung" has the same kernels
  check_all_kinds<BFloat16, float>(gemm_tensor_16);
  check_all_kinds<Half, float>(gemm_tensor_16);
  check_all_kinds<BFloat16, float>(gemm_hopper_16);
  check_all_kinds<Half, float>(gemm_hopper_16);
  check_all_kinds<BFloat16, float>(gemm);
  check_all_kinds<Half, float>(gemm);
}

TEST_CASE("every size of tiles" * doctest::test_suite("not-races")) {
  check_tiles<float>(gemm_double_buffered, double_buffered_speeds);
  check_tiles<float>(gemm_tensor_tf32, tensor_tf32_speeds, true);
  check_tiles<BFloat16>(gemm_tensor_16, tensor_16_speeds);
  check_tiles<Half>(gemm_tensor_16, tensor_16_speeds);
  check_tiles<BFloat16, float>(gemm_tensor_16, tensor_16_speeds);
  check_tiles<Half, float>(gemm_tensor_16, tensor_16_speeds);
}

TEST_CASE_TEMPLATE("factors of f32 are rounded on their way as a cast rounds them", T, BFloat16,
                   Half) {
  // Full tiles and tails, odd sizes, a k that the ring of tiles does not hold; rows that begin at
  // multiples of 16 bytes in both types, in one, and in none.
  const std::int64_t sizes[][3] = {{1, 1, 1}, {64, 72, 40}, {5, 130, 20}, {72, 67, 333}};
  std::size_t turn = 0;
  for (const auto& [m, n, k] : sizes)
    for (const bool ta : flags)
      for (const bool tb : flags) {
        const std::size_t offset_a = turn % 2, offset_b = turn / 2 % 2;
        const Case c{m, n, k, ta, tb, thens[turn % 6], turn % 3 / 2};
        check_rounding<T, T>(c, 1, offset_a, offset_b);
        check_rounding<T, float>(c, 2, offset_b, offset_a);
        check_rounding<T, float>(c, 1, 0, 0);
        turn += ta && tb ? 2 : 1;  // the layouts meet other ends and offsets at the next size
      }
}

TEST_CASE("tiles in several bands") {
  for (const std::int64_t m : {9 * 64, 19 * 64 + 1}) {
    check_product<float>(gemm_tensor_tf32, {m, 130, 3}, true);
    check_product<BFloat16>(gemm_tensor_16, {m, 72, 8});
  }
}

TEST_CASE("a long sum over few results is split") {
  // Slices with a tail, results that do and do not fill their tiles, rows aligned and not.
  const std::int64_t sizes[][3] = {{5, 7, 1100}, {33, 36, 520}, {64, 72, 1000}};
  std::size_t turn = 0;  // every transpose meets every way to end
  for (const auto& [m, n, k] : sizes)
    for (const bool ta : flags)
      for (const bool tb : flags) {
        const Case c{m, n, k, ta, tb, thens[turn % 6], turn / 2 % 2};
        ++turn;
        check_product<float>(gemm_double_buffered, c);
        check_product<float>(gemm_tensor_tf32, c, true);
        check_product<BFloat16>(gemm_tensor_16, c);
        check_product<Half, float>(gemm_tensor_16, c);
      }
}

TEST_CASE("any number of slices is added up") {
  // Eight are loaded at a time, after the first; the last is short.
  for (const int slices : {2, 8, 9, 10, 17, 18}) {
    const std::int64_t k = slices * 80 - 3;
    CHECK(cut_depth(k, slices, 16, 64).count == slices);
    check_plan<float>(gemm_double_buffered, {2, slices}, {33, 36, k});
    check_plan<float>(gemm_double_buffered, {2, slices}, {5, 7, k, true, false, Then::bias});
  }
  for (const Then then : {Then::bias_relu, Then::positive})
    for (const std::size_t offset : {0, 1}) {  // 1: less aligned than c
      const Case c{33, 36, 600, false, false, then, 0, offset};
      check_plan<float>(gemm_double_buffered, {2, 9}, c);
      check_plan<BFloat16>(gemm_tensor_16, {1, 4}, c);
    }
}

TEST_CASE("slices for which there is no memory") {
  constexpr std::int64_t size = 1 << 18;  // more slices than a cluster has blocks
  const GemmProblem<float> problem{size, size, 288, nullptr, false, nullptr, false, nullptr, false};
  CHECK_THROWS_WITH_AS(
      gemm_double_buffered(problem, {0, 9}, nullptr),
      doctest::Contains("[matmul] cudaMallocAsync of 2473901162496 bytes of scratch memory"),
      DeviceError);
}

TEST_CASE("the default products") {
  for (const bool t : flags) {
    const Case wide{33, 130, 70, t, !t, Then::bias_relu}, narrow{128, 10, 600, t, t};
    for (const Case& c : {wide, narrow}) {
      check_product<float>(gemm, c);
      check_product<float>(gemm_tf32, c, true);
      check_product<double>(gemm, c);
      check_product<BFloat16>(gemm, c);
      check_product<Half>(gemm, c);
    }
  }
}

TEST_CASE_TEMPLATE("two runs give the same bits" * doctest::test_suite("not-races"), T, float,
                   double, BFloat16, Half) {
  for (const Rung<T>& rung : rungs<T>()) {
    CAPTURE(rung.name);
    const Trial<T> trial({65, 33, 600});
    const auto run = [&rung](const GemmProblem<T>& problem) { rung.run(problem, nullptr); };
    const std::vector<T> first = trial.run(run), second = trial.run(run);
    CHECK(std::memcmp(first.data(), second.data(), first.size() * sizeof(T)) == 0);
  }
}

}  // namespace gemm_cases
