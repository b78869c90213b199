#include "lockstep/kernels/clip.h"

#include "kernels/support.h"
#include "lockstep/core/gpu/gpu.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

double norm_of(std::span<const Tensor> tensors) {
  const Tensor out = nan<double>({});
  global_norm(tensors, out);
  return out.item();
}

/// Different lengths: none, one, more than a chunk of the kernel, and more than a table holds.
std::vector<std::int64_t> lengths() {
  std::vector<std::int64_t> result = {0, 1, 2, 15, 16, 17, 1000, 4099, 0};
  while (result.size() < 200) result.push_back(static_cast<std::int64_t>(result.size()) % 37);
  return result;
}

template <class T>
std::vector<Tensor> tensors_of(const std::vector<std::int64_t>& sizes, bool shift = false) {
  std::vector<Tensor> result;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    const Tensor tensor = varied<T>({sizes[k]}, static_cast<int>(k));
    result.push_back(shift ? shifted<T>(tensor) : tensor);
  }
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("the norm of many tensors, of any length and alignment", T, float, double) {
  CHECK(norm_of({}) == 0);
  CHECK(norm_of(std::vector{of_values<T>({2}, {3, -4})}) == 5);
  CHECK(norm_of(std::vector{of_values<T>({1, 1}, {-12}), nan<T>({0}), of_values<T>({}, {5})}) ==
        13);
  const std::vector<std::int64_t> sizes = lengths();
  double squares = 0;
  for (std::size_t k = 0; k < sizes.size(); ++k)
    for (std::int64_t i = 0; i < sizes[k]; ++i)
      squares += value_at(i, static_cast<int>(k)) * value_at(i, static_cast<int>(k));
  const double norm = norm_of(tensors_of<T>(sizes));
  CHECK(norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-13));
  CHECK(norm_of(tensors_of<T>(sizes, true)) == norm);  // elsewhere in memory: the same bits
}

TEST_CASE("the norm of long tensors: f64 throughout") {
  // 2^24 + 1 ones: an f32 sum would stop at 2^24.
  const std::int64_t n = on_cpu() ? (1 << 24) + 1 : (1 << 18) + 1;
  const Tensor ones = Tensor::full({n}, 1, DType::f32, test_device());
  CHECK(norm_of(std::vector{ones}) == std::sqrt(static_cast<double>(n)));
  const Tensor large = Tensor::full({4}, 3e38, DType::f32, test_device());  // squares exceed f32
  CHECK(norm_of(std::vector{large}) == doctest::Approx(6e38).epsilon(1e-6));
}

TEST_CASE("the norm depends on the order of the tensors, not on neighbours in memory") {
  // Slices of one memory against tensors of their own, of both dtypes.
  const std::vector<std::int64_t> sizes = {5, 4097, 1, 640};
  std::vector<Tensor> own, sliced;
  const Tensor memory = nan<float>({5 + 4097 + 1 + 640 + 30});
  std::int64_t at = 1;
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    own.push_back(varied<float>({sizes[k]}, static_cast<int>(k)));
    sliced.push_back(memory.slice(at, at + sizes[k]));
    sliced.back().copy_from(own.back());
    at += sizes[k] + 7;
  }
  const Tensor f64 = varied<double>({99}, 9);
  own.insert(own.begin() + 1, f64);
  sliced.insert(sliced.begin() + 1, shifted<double>(f64));
  CHECK(norm_of(own) == norm_of(sliced));
  double squares = 0;
  for (const Tensor& tensor : own)
    for (const double x :
         tensor.dtype() == DType::f32 ? to_values<float>(tensor) : to_values<double>(tensor))
      squares += x * x;
  CHECK(norm_of(own) == doctest::Approx(std::sqrt(squares)).epsilon(1e-13));
}

TEST_CASE_TEMPLATE("clipping by norm and by value follow PyTorch's formulas", T, float, double) {
  const std::vector<std::int64_t> sizes = lengths();
  const std::vector<Tensor> by_norm = tensors_of<T>(sizes), by_value = tensors_of<T>(sizes, true);
  clip_by_norm(by_norm, here(Tensor::scalar(8, DType::f64)), 2);
  clip_by_value(by_value, 0.75);
  const T factor = static_cast<T>(2 / (8 + 1e-6));
  for (std::size_t k = 0; k < sizes.size(); ++k) {
    CAPTURE(sizes[k]);
    Values scaled, clamped;
    for (std::int64_t i = 0; i < sizes[k]; ++i) {
      const double x = value_at(i, static_cast<int>(k));
      scaled.push_back(static_cast<T>(x) * factor);
      clamped.push_back(std::min(std::max(x, -0.75), 0.75));
    }
    check_close<T>(by_norm[k], scaled, 0);
    check_close<T>(by_value[k], clamped, 0);
  }
}

TEST_CASE_TEMPLATE("what is short enough, and what is no number", T, float, double) {
  const double quiet = std::numeric_limits<double>::quiet_NaN();
  const auto clipped = [](double norm, Values values) {
    const Tensor x = of_values<T>({static_cast<std::int64_t>(values.size())}, values);
    clip_by_norm({&x, 1}, here(Tensor::scalar(norm, DType::f64)), 5);
    return to_values<T>(x);
  };
  check_close(clipped(4.9, {3, -4, infinity, quiet}), {3, -4, infinity, quiet}, 0);
  check_close(clipped(0, {3, -4}), {3, -4}, 0);
  check_close(clipped(10, {3, -4}), {3 * 5 / (10 + 1e-6), -4 * 5 / (10 + 1e-6)}, 1e-6);
  check_close(clipped(quiet, {3, -4}), {quiet, quiet}, 0);
  check_close(clipped(infinity, {3, infinity}), {0, quiet}, 0);
  const Tensor x = of_values<T>({4}, {-infinity, quiet, -0.0, infinity});
  clip_by_value({&x, 1}, 2);
  check_close<T>(x, {-2, quiet, 0, 2}, 0);
  CHECK(std::signbit(to_values<T>(x)[2]));
  for (const double bad : {quiet, infinity, -infinity}) {
    const double norm = norm_of(std::vector{of_values<T>({3}, {1, bad, 2})});
    CHECK(std::isnan(norm) == std::isnan(bad));
    CHECK_FALSE(std::isfinite(norm));
  }
}

TEST_CASE("a GPU clips many tensors of both dtypes in one launch for each") {
  if (on_cpu()) return;  // nothing is launched
  std::vector<Tensor> tensors;
  for (int k = 0; k < 40; ++k) {
    tensors.push_back(varied<float>({k}, k));
    tensors.push_back(varied<double>({k}, k));
  }
  const Tensor norm = nan<double>({});
  auto before = gpu::kernel_launches();
  global_norm(tensors, norm);
  clip_by_norm(tensors, norm, 1);
  auto after = gpu::kernel_launches();
  CHECK(after["sum_squares_kernel"] - before["sum_squares_kernel"] == 2);
  CHECK(after["clip_kernel"] - before["clip_kernel"] == 2);
  CHECK(norm_of(tensors) == doctest::Approx(1).epsilon(1e-6));
}

TEST_CASE("clipping refuses what does not fit") {
  const std::vector<Tensor> a = {varied<float>({3})};
  const Tensor f32 = varied<float>({1}), two = varied<double>({2}), one = varied<double>({1});
  CHECK_THROWS_WITH_AS(global_norm(a, f32), "[global_norm] out: expected f64, got f32", DTypeError);
  CHECK_THROWS_WITH_AS(global_norm(a, two),
                       "[global_norm] out: expected one element, got shape (2,)", ShapeError);
  CHECK_THROWS_WITH_AS(clip_by_norm(a, Tensor(), 1), "[clip_by_norm] norm is undefined",
                       ShapeError);
  const std::vector<Tensor> integers = {here(Tensor::zeros({2}, DType::i64))};
  CHECK_THROWS_WITH_AS(clip_by_norm(integers, one, 1), "[clip_by_norm] takes f32 or f64, got i64",
                       DTypeError);
  CHECK_THROWS_WITH_AS(clip_by_value(std::vector{Tensor()}, 1),
                       "[clip_by_value] tensor is undefined", ShapeError);
  clip_by_value({}, 1);
  clip_by_norm({}, one, 1);
}
