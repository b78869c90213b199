#pragma once
/// The product itself, without shapes or dtypes: what a BLAS calls gemm. On the CPU, CMake chooses
/// the file that defines the products of f32 and bf16: cpu/gemm_onednn.cpp or
/// cpu/gemm_without_onednn.cpp. The handwritten ones for GPUs are the ladder in cuda/gemm/.

#include <cstdint>
#include <span>
#include <type_traits>

#include "lockstep/core/half.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep::kernels {

/// What products with results of type C are added up in.
template <class C>
using SumOf = std::conditional_t<std::is_same_v<C, double>, double, float>;

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
  // The epilogue (matmul.h), which never comes with `accumulate`.
  const SumOf<C>* bias = nullptr;  ///< (n,); null: none
  bool relu = false;
  const C* positive = nullptr;  ///< (m, n); null: none
  // linear_gradients (matmul.h), on rungs 8 and later, with transpose_a: (m,) (+)= the sums of
  // op(a)'s rows, too; null: no.
  C* row_sums = nullptr;
  bool accumulate_row_sums = false;
  // Factors that lie in memory as f32, in place of `a` and `b`, which are null then. Each number is
  // rounded to T, a type of 16 bits, before it is multiplied. For what cuda::can_round() alone.
  const float* a_f32 = nullptr;
  const float* b_f32 = nullptr;

  bool rounds() const { return a_f32 || b_f32; }
};

/// That of tensors, whose shapes and dtypes have been checked.
template <class T, class C = T>
GemmProblem<T, C> problem_of(const Tensor& a, const Tensor& b, const Epilogue& epilogue,
                             const Tensor& out, const MatmulFlags& flags) {
  const auto data = [](const Tensor& x) { return x.defined() ? x.data<C>() : nullptr; };
  const auto factor = [](const Tensor& x) {
    return x.dtype() == dtype_of<T>() ? x.data<T>() : nullptr;
  };
  const auto in_f32 = [](const Tensor& x) {
    return x.dtype() == dtype_of<T>() ? nullptr : x.data<float>();
  };
  return {.m = out.size(0),
          .n = out.size(1),
          .k = a.size(flags.transpose_a ? 0 : 1),
          .a = factor(a),
          .transpose_a = flags.transpose_a,
          .b = factor(b),
          .transpose_b = flags.transpose_b,
          .c = out.data<C>(),
          .accumulate = flags.accumulate,
          .bias = epilogue.bias.defined() ? epilogue.bias.data<SumOf<C>>() : nullptr,
          .relu = epilogue.relu,
          .positive = data(epilogue.positive),
          .a_f32 = in_f32(a),
          .b_f32 = in_f32(b)};
}

namespace cpu {
/// Chain products (ChainProducts); sizes may be 0. They start at the bias, and leave the rest of
/// the epilogue to their caller. With `blocks` it is matmul_blocks, of (k, m) and (k, n), without
/// one.
void chain_gemm(const GemmProblem<float>& problem, std::span<const std::int64_t> blocks = {});
void chain_gemm(const GemmProblem<double>& problem, std::span<const std::int64_t> blocks = {});

/// They leave the epilogue to their caller.
void gemm(const GemmProblem<float>& problem);
void gemm(const GemmProblem<double>& problem);
void gemm(const GemmProblem<BFloat16, float>& problem);  ///< where bf16_unit() names one
}  // namespace cpu

}  // namespace lockstep::kernels
