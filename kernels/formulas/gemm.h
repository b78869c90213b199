#pragma once
/// The product itself, without shapes or dtypes: what a BLAS calls gemm. On the CPU, CMake chooses
/// the file that defines the f32 one: cpu/gemm_f32_onednn.cpp or cpu/gemm_f32_eigen.cpp. The
/// handwritten ones for GPUs are the ladder in cuda/gemm/.

#include <cstdint>

#include "lockstep/kernels/matmul.h"

namespace lockstep::kernels {

/// c (+)= op(a) op(b) + bias, row-major and contiguous; op(a) is (m, k), op(b) is (k, n), all
/// sizes > 0. No pointer need be aligned to more than its element.
template <class T>
struct GemmProblem {
  std::int64_t m, n, k;
  const T* a;
  bool transpose_a;  ///< `a` lies in memory as (k, m)
  const T* b;
  bool transpose_b;  ///< `b` lies in memory as (n, k)
  T* c;
  bool accumulate;
  const T* bias = nullptr;  ///< (n,), added to every row; null: none. Never with `accumulate`
};

/// That of tensors, whose shapes and dtypes have been checked.
template <class T>
GemmProblem<T> problem_of(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                          const MatmulFlags& flags) {
  return {.m = out.size(0),
          .n = out.size(1),
          .k = a.size(flags.transpose_a ? 0 : 1),
          .a = a.data<T>(),
          .transpose_a = flags.transpose_a,
          .b = b.data<T>(),
          .transpose_b = flags.transpose_b,
          .c = out.data<T>(),
          .accumulate = flags.accumulate,
          .bias = bias.defined() ? bias.data<T>() : nullptr};
}

namespace cpu {
/// Leaves `bias` to its caller.
void gemm(const GemmProblem<float>& problem);
void gemm(const GemmProblem<double>& problem);
}  // namespace cpu

}  // namespace lockstep::kernels
