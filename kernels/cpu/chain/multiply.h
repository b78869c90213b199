#pragma once
/// A chain product as kernels/matmul.h describes it, by vectors of the type V: vectors.h.

#include "lockstep/kernels/cpu/chain/product.h"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels::chain {

/// Whether the tiles' columns are C's rows: then the vectors lie across C's rows, and tiles are
/// transposed as they are written. A factor that lies along k is transposed to be read in vectors:
/// who has the smaller one wins. Costs are in thirds of a multiply-add of vectors.
template <class V>
bool across_rows(const GemmProblem<float>& p) {
  const auto vectors = [](std::int64_t n) { return pieces(n, V::width); };
  const std::int64_t along_rows = 3 * p.m * vectors(p.n) * p.k + (p.transpose_b ? p.n * p.k : 0);
  const std::int64_t across =
      3 * p.n * vectors(p.m) * p.k + (p.transpose_a ? 0 : p.m * p.k) + 2 * p.m * p.n;
  return across < along_rows;
}

/// See cpu::chain_gemm.
template <class V>
void multiply(const GemmProblem<float>& p, std::span<const std::int64_t> lanes) {
  if (p.m == 0 || p.n == 0) return;
  const Factor a{p.a, p.transpose_a ? p.m : p.k, !p.transpose_a};
  const Factor b{p.b, p.transpose_b ? p.k : p.n, p.transpose_b};
  Product product{p.m, p.n, p.k, a, b, p.c, p.n, false, p.accumulate, p.bias, lanes};
  if (lanes.empty() && across_rows<V>(p)) {
    std::swap(product.m, product.n);
    std::swap(product.rows, product.columns);
    product.transposed = true;
  }
  Tiles<V>(product).run();
}

}  // namespace lockstep::kernels::chain
