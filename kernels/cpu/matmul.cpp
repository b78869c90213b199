#include <algorithm>

#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels {
namespace {

template <class T>
void multiply(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
              const MatmulFlags& flags) {
  // The product is added to rows that already hold the bias: cheaper than another pass after it.
  if (bias.defined())
    for (std::int64_t row = 0; row < out.size(0); ++row)
      std::copy_n(bias.data<T>(), bias.numel(), out.data<T>() + row * bias.numel());
  GemmProblem<T> problem = problem_of<T>(a, b, bias, out, flags);
  problem.accumulate = flags.accumulate || bias.defined();
  cpu::gemm(problem);
}

Tensor as(DType dtype, const Tensor& x) {
  if (!x.defined()) return {};
  const Tensor result = Tensor::empty(x.shape(), dtype);
  cpu_backend().cast(x, result);
  return result;
}

}  // namespace

void CpuBackend::matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                        const MatmulFlags& flags) {
  if (a.dtype() == DType::f64) return multiply<double>(a, b, bias, out, flags);
  if (a.dtype() == DType::f32) return multiply<float>(a, b, bias, out, flags);
  // 16-bit: the product, what is added to it and the bias are f32, rounded once at the end.
  const Tensor sum = as(DType::f32, out);
  multiply<float>(as(DType::f32, a), as(DType::f32, b), as(DType::f32, bias), sum, flags);
  cast(sum, out);
}

}  // namespace lockstep::kernels
