#pragma once
/// The product itself, without shapes or dtypes: what a BLAS calls gemm. CMake chooses the file
/// that defines the f32 one: gemm_f32_onednn.cpp or gemm_f32_eigen.cpp.

#include <cstdint>

namespace lockstep::kernels {

/// c (+)= op(a) op(b), row-major and contiguous; op(a) is (m, k), op(b) is (k, n), all sizes > 0.
template <class T>
struct GemmProblem {
  std::int64_t m, n, k;
  const T* a;
  bool transpose_a;  ///< `a` lies in memory as (k, m)
  const T* b;
  bool transpose_b;  ///< `b` lies in memory as (n, k)
  T* c;
  bool accumulate;
};

void gemm(const GemmProblem<float>& problem);
void gemm(const GemmProblem<double>& problem);

}  // namespace lockstep::kernels
