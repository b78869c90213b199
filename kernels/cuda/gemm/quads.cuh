#pragma once
/// Four elements at a time: what rungs 6 to 10 use to read factors by 16 bytes, and to write four
/// neighbouring results at once. For .cu files only.

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/gemm/operand.cuh"

namespace lockstep::kernels::cuda {

using Quad = Pack<float>;

/// True if c, and what the epilogue reads, can be accessed by quads.
template <class T, class C>
bool aligned_results(const GemmProblem<T, C>& p) {
  return is_aligned<4>(p.c) && is_aligned<4>(p.bias) && is_aligned<4>(p.positive) && p.n % 4 == 0;
}

/// Four elements of x along its contiguous dimension, the first at (outer, depth); zeros beyond its
/// ends. `VECTOR` requires x.aligned_rows() and a first element whose place in that dimension is a
/// multiple of 4: then all four exist or none does.
template <bool VECTOR>
__device__ __forceinline__ Quad load_quad(const Operand<float>& x, std::int64_t outer,
                                          std::int64_t depth) {
  if constexpr (VECTOR) {
    return x.contains(outer, depth) ? load_pack(x.address(outer, depth)) : Quad{};
  } else {
    Quad quad;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t o = outer + (x.depth_contiguous ? 0 : i);
      const std::int64_t d = depth + (x.depth_contiguous ? i : 0);
      quad[i] = x.contains(o, d) ? *x.address(o, d) : 0.0f;
    }
    return quad;
  }
}

/// load_tile (operand.cuh) by quads: one for each thread. A quad along the outer dimension is
/// stored as it is; one along the depth goes to four rows of the tile.
template <bool VECTOR, int THREADS, int DEPTH, int ROW>
__device__ __forceinline__ void load_tile_of_quads(const Operand<float>& x, std::int64_t outer,
                                                   std::int64_t depth, float (&tile)[DEPTH][ROW]) {
  constexpr int OUTER = THREADS * 4 / DEPTH;
  static_assert(DEPTH % 4 == 0 && ROW % 4 == 0 && ROW >= OUTER);
  const int thread = static_cast<int>(threadIdx.x);
  if (x.depth_contiguous) {
    const int o = thread / (DEPTH / 4), d = thread % (DEPTH / 4) * 4;
    const Quad quad = load_quad<VECTOR>(x, outer + o, depth + d);
#pragma unroll
    for (int i = 0; i < 4; ++i) tile[d + i][o] = quad[i];
  } else {
    const int o = thread % (OUTER / 4) * 4, d = thread / (OUTER / 4);
    store_pack(&tile[d][o], load_quad<VECTOR>(x, outer + o, depth + d));
  }
}

/// to[0..3] = the quad at `from`, which is aligned to 16 bytes.
__device__ __forceinline__ void read_quad(const float* from, float* to) {
  const Quad quad = load_pack(from);
#pragma unroll
  for (int i = 0; i < 4; ++i) to[i] = quad[i];
}

/// sum = what is stored at the WIDTH results that begin at (row, column): store() for several. The
/// results exist, and all that is read is aligned to WIDTH elements.
template <int WIDTH, class T, class C, class Sums>
__device__ __forceinline__ void finish(const GemmProblem<T, C>& p, std::int64_t row,
                                       std::int64_t column, Sums& sum) {
  const std::int64_t place = row * p.n + column;
  const auto with = [&sum]<class X>(const X* from, auto&& use) {
    const Pack<X, WIDTH> x = load_pack<WIDTH>(from);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum[i] = use(convert<float>(x[i]), sum[i]);
  };
  const auto add = [](float x, float s) { return s + x; };
  const auto keep = [](float y, float s) { return where_positive(y, s); };
  if (p.bias) with(p.bias + column, add);
  if (p.accumulate) with(p.c + place, add);
  if (p.relu)
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum[i] = where_positive(sum[i], sum[i]);
  if (p.positive) with(p.positive + place, keep);
}

/// Finishes the four results that begin at (row, column). With `vector`, which requires
/// aligned_results(p) and a column that is a multiple of 4, by one access.
template <class T, class C>
__device__ __forceinline__ void store_quad(const GemmProblem<T, C>& p, std::int64_t row,
                                           std::int64_t column, const float* sum, bool vector) {
  if (!vector) {
#pragma unroll
    for (int i = 0; i < 4; ++i) store(p, row, column + i, sum[i]);
    return;
  }
  if (row >= p.m || column >= p.n) return;
  C* c = p.c + row * p.n + column;
  Quad result;
#pragma unroll
  for (int i = 0; i < 4; ++i) result[i] = sum[i];
  finish<4>(p, row, column, result);
  if constexpr (std::is_same_v<C, float>) {
    *reinterpret_cast<Quad*>(c) = result;  // store_pack's integers would cost registers: 06 spills
  } else {
    Pack<C, 4> rounded;
#pragma unroll
    for (int i = 0; i < 4; ++i) rounded[i] = convert<C>(result[i]);
    store_pack(c, rounded);
  }
}

}  // namespace lockstep::kernels::cuda
