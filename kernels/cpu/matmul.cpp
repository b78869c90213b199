#include "lockstep/kernels/matmul.h"

#include <algorithm>

#include "lockstep/kernels/checks.h"
#include "lockstep/kernels/cpu/gemm.h"

namespace lockstep::kernels {
namespace {

struct Sizes {
  std::int64_t m, n, k;
};

std::string describe(const Tensor& matrix, bool transposed) {
  return matrix.shape().to_string() + (transposed ? "^T" : "");
}

Sizes check_product(std::string_view operation, const Tensor& a, const Tensor& b, const Tensor& out,
                    const MatmulFlags& flags) {
  check_host(operation, "a", a, a.dtype());
  check_host(operation, "b", b, a.dtype());
  check_host(operation, "out", out, a.dtype());
  check_rank(operation, "a", a, 2);
  check_rank(operation, "b", b, 2);
  const std::int64_t m = a.size(flags.transpose_a ? 1 : 0), k = a.size(flags.transpose_a ? 0 : 1);
  const std::int64_t n = b.size(flags.transpose_b ? 0 : 1);
  if (k != b.size(flags.transpose_b ? 1 : 0))
    fail<ShapeError>("[{}] inner dimensions differ: {} x {}", operation,
                     describe(a, flags.transpose_a), describe(b, flags.transpose_b));
  check_shape(operation, "out", out, {m, n});
  return {m, n, k};
}

void multiply(std::string_view operation, const Sizes& sizes, const Tensor& a, const Tensor& b,
              const Tensor& out, const MatmulFlags& flags) {
  const auto [m, n, k] = sizes;
  if (m == 0 || n == 0 || k == 0) {
    if (!flags.accumulate) out.fill_zero();
    return;
  }
  visit_floating(operation, a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    gemm(GemmProblem<T>{sizes.m, sizes.n, sizes.k, a.data<T>(), flags.transpose_a, b.data<T>(),
                        flags.transpose_b, out.data<T>(), flags.accumulate});
  });
}

}  // namespace

void matmul(const Tensor& a, const Tensor& b, const Tensor& out, MatmulFlags flags) {
  multiply("matmul", check_product("matmul", a, b, out, flags), a, b, out, flags);
}

void linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& out) {
  const MatmulFlags flags{.transpose_b = true, .accumulate = bias.defined()};
  const Sizes sizes = check_product("linear", x, w, out, flags);
  if (bias.defined()) {
    check_host("linear", "bias", bias, x.dtype());
    check_shape("linear", "bias", bias, {sizes.n});
    // The product is added to rows that already hold the bias: cheaper than another pass after it.
    for (std::int64_t row = 0; row < sizes.m; ++row)
      std::copy_n(bias.raw(), bias.bytes(),
                  out.raw() + static_cast<std::size_t>(row) * bias.bytes());
  }
  multiply("linear", sizes, x, w, out, flags);
}

}  // namespace lockstep::kernels
