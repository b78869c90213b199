#pragma once
/// A product by Eigen. Include it in few files: it compiles slowly.

#include <Eigen/Core>

#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels {

/// Calls f with the matrix as Eigen sees it. A transposed row-major matrix is a column-major one.
template <class T, class F>
void with_matrix(const T* data, std::int64_t rows, std::int64_t columns, bool transposed, F&& f) {
  using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  if (transposed)
    f(Eigen::Map<const ColMajor>(data, rows, columns));
  else
    f(Eigen::Map<const RowMajor>(data, rows, columns));
}

template <class T>
void gemm_eigen(const GemmProblem<T>& p) {
  using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Map<RowMajor> c(p.c, p.m, p.n);
  with_matrix(p.a, p.m, p.k, p.transpose_a, [&](const auto& a) {
    with_matrix(p.b, p.k, p.n, p.transpose_b, [&](const auto& b) {
      if (p.accumulate)
        c.noalias() += a * b;
      else
        c.noalias() = a * b;
    });
  });
}

}  // namespace lockstep::kernels
