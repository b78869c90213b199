#pragma once
/// The product itself, without shapes or dtypes: what a BLAS calls gemm. On the CPU, CMake chooses
/// the file that defines the products of f32 and bf16: cpu/gemm_onednn.cpp or
/// cpu/gemm_without_onednn.cpp. The handwritten ones for GPUs are the ladder in cuda/gemm/.

#include <cstdint>
#include <span>

#include "lockstep/core/half.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep::kernels {

/// c (+)= op(a) op(b) + bias, row-major and contiguous; op(a) is (m, k), op(b) is (k, n), all
/// sizes > 0. No pointer need be aligned to more than its element. Factors of 16 bits may have a
/// result C of f32.
template <class T, class C = T>
struct GemmProblem {
  std::int64_t m, n, k;
  const T* a;
  bool transpose_a;  ///< `a` lies in memory as (k, m)
  const T* b;
  bool transpose_b;  ///< `b` lies in memory as (n, k)
  C* c;
  bool accumulate;
  const C* bias = nullptr;  ///< (n,), added to every row; null: none. Never with `accumulate`
};

/// That of tensors, whose shapes and dtypes have been checked.
template <class T, class C = T>
GemmProblem<T, C> problem_of(const Tensor& a, const Tensor& b, const Tensor& bias,
                             const Tensor& out, const MatmulFlags& flags) {
  return {.m = out.size(0),
          .n = out.size(1),
          .k = a.size(flags.transpose_a ? 0 : 1),
          .a = a.data<T>(),
          .transpose_a = flags.transpose_a,
          .b = b.data<T>(),
          .transpose_b = flags.transpose_b,
          .c = out.data<C>(),
          .accumulate = flags.accumulate,
          .bias = bias.defined() ? bias.data<C>() : nullptr};
}

namespace cpu {
/// Chain products (ChainProducts); sizes may be 0. They start at the bias. With `blocks` it is
/// matmul_blocks, of (k, m) and (k, n), without a bias.
void chain_gemm(const GemmProblem<float>& problem, std::span<const std::int64_t> blocks = {});
void chain_gemm(const GemmProblem<double>& problem, std::span<const std::int64_t> blocks = {});

/// They leave `bias` to their caller.
void gemm(const GemmProblem<float>& problem);
void gemm(const GemmProblem<double>& problem);
void gemm(const GemmProblem<BFloat16, float>& problem);  ///< where bf16_unit() names one
}  // namespace cpu

}  // namespace lockstep::kernels
