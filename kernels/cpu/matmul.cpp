#include <algorithm>

#include "lockstep/kernels/backend/after_product.h"
#include "lockstep/kernels/backend/blocks_apart.h"
#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/gemm.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::kernels {
namespace {

/// With the bias; the rest of an epilogue is left to the caller.
template <class T, class C = T>
void multiply(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
              const MatmulFlags& flags) {
  if constexpr (std::is_floating_point_v<T>)
    if (ChainProducts::on()) return cpu::chain_gemm(problem_of<T>(a, b, {bias}, out, flags));
  GemmProblem<T, C> problem = problem_of<T, C>(a, b, {bias}, out, flags);
  if (problem.bias) {
    // The product is added to rows that already hold the bias: cheaper than another pass after it.
    for (std::int64_t row = 0; row < problem.m; ++row)
      std::copy_n(problem.bias, problem.n, problem.c + row * problem.n);
    problem.accumulate = true;
  }
  cpu::gemm(problem);
}

// Of 16-bit factors. Result and bias are f32.
void multiply_16_bit(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                     const MatmulFlags& flags) {
  if (a.dtype() == DType::bf16 && !bf16_unit().empty())
    multiply<BFloat16, float>(a, b, bias, out, flags);
  else
    multiply<float>(as(DType::f32, a), as(DType::f32, b), bias, out, flags);
}

void multiply_by_type(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                      const MatmulFlags& flags) {
  if (a.dtype() == DType::f64) return multiply<double>(a, b, bias, out, flags);
  if (a.dtype() == DType::f32) return multiply<float>(a, b, bias, out, flags);
  if (out.dtype() == DType::f32) return multiply_16_bit(a, b, bias, out, flags);
  // What the product is added to and the bias are f32 as it is: all is rounded once, at the end.
  const Tensor sum =
      flags.accumulate ? as(DType::f32, out) : Tensor::empty(out.shape(), DType::f32);
  multiply_16_bit(a, b, as(DType::f32, bias), sum, flags);
  cpu_backend().cast(sum, out);
}

}  // namespace

bool CpuBackend::rounds_factors(std::int64_t, std::int64_t, std::int64_t) { return false; }

void CpuBackend::matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue,
                        const Tensor& out, const MatmulFlags& flags) {
  multiply_by_type(rounded_factor(flags.round_to, a), rounded_factor(flags.round_to, b),
                   epilogue.bias, out, flags);
  after_product(epilogue, out);
}

void CpuBackend::linear_gradients(const Tensor& dy, const Tensor& x, const Into& dw,
                                  const Into& dbias, DType round_to) {
  const Tensor rows = rounded_factor(round_to, dy);
  matmul(rows, x, {}, dw.tensor,
         {.transpose_a = true, .accumulate = dw.accumulate, .round_to = round_to});
  kernels::sum_rows(as(dbias.tensor.dtype(), rows), dbias.tensor, dbias.accumulate);
}

void CpuBackend::matmul_blocks(const Tensor& a, const Tensor& b, const Tensor& out,
                               RowBlocks blocks, bool accumulate) {
  const MatmulFlags flags{.transpose_a = true, .accumulate = accumulate};
  const bool chains = ChainProducts::on();
  if (chains && a.dtype() == DType::f32)
    return cpu::chain_gemm(problem_of<float>(a, b, {}, out, flags), blocks);
  if (chains && a.dtype() == DType::f64)
    return cpu::chain_gemm(problem_of<double>(a, b, {}, out, flags), blocks);
  matmul_blocks_apart(a, b, out, blocks, accumulate);
}

}  // namespace lockstep::kernels
