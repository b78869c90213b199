#pragma once
/// The ladder: matrix products on a GPU, from three lines to tensor cores, one file per rung. Each
/// rung mends what the one before it wastes; read them in order. Every rung takes any sizes > 0,
/// both transposes, unaligned pointers, `accumulate` and `bias`; they differ in speed alone.
///
///   f32, f64   01_naive            one thread per result, in the wrong order
///   f32        02_coalesced        neighbouring threads read neighbouring addresses
///   f32        03_shared           a block shares its reads through shared memory
///   f32        04_tile_1d          a thread computes 8 results
///   f32, f64   05_tile_2d          a thread computes 8 x 8 results
///   f32        06_vectorized       16 bytes per access
///   f32        07_warp_tile        the threads of a warp share their reads of shared memory
///   f32        08_double_buffered  copies run while the block computes; long sums are split
///   tf32       09_tensor_tf32      tensor cores, inputs rounded to 11 bits
///   bf16, f16  10_tensor_bf16      tensor cores, 16-bit inputs
///   bf16, f16  11_hopper_bf16      the copies and the tensor cores of Hopper GPUs (sm_90a)
///   tf32       12_hopper_tf32      the same for tf32
///
/// A product of 16-bit factors may have a result of f32 (rungs 10 and 11). Rung 10 also takes
/// factors of f32, and rounds them on their way: can_round().
///
/// All functions only enqueue work on `stream` and may be called from any thread. Results are
/// deterministic: their bits depend on the rung, and on the problem alone. For 16-bit types and
/// tf32 the rung depends on the problem, on whether the GPU is a Hopper, and on whether the rows of
/// matrices are aligned for its copy engine (hopper_can). Sums are made in f32 (f64 for f64); the
/// bias and the former value of c are added to the sum before it is rounded to c's type.

#include <cuda_runtime.h>

#include <span>
#include <string_view>
#include <type_traits>

#include "lockstep/core/half.h"
#include "lockstep/kernels/cuda/gemm/slice_plan.h"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels::cuda {

/// The product that all callers use: the best of the rungs in full precision.
void gemm(const GemmProblem<float>& problem, cudaStream_t stream);
void gemm(const GemmProblem<double>& problem, cudaStream_t stream);
template <class T, class C>  // as rungs 10 and 11
void gemm(const GemmProblem<T, C>& problem, cudaStream_t stream);
/// The same on tensor cores, for callers that accept inputs rounded to tf32: 11 significant bits
/// instead of 24 in each factor; sums stay f32.
void gemm_tf32(const GemmProblem<float>& problem, cudaStream_t stream);

void gemm_naive(const GemmProblem<float>& problem, cudaStream_t stream);
void gemm_naive(const GemmProblem<double>& problem, cudaStream_t stream);
void gemm_coalesced(const GemmProblem<float>& problem, cudaStream_t stream);
void gemm_shared(const GemmProblem<float>& problem, cudaStream_t stream);
void gemm_tile_1d(const GemmProblem<float>& problem, cudaStream_t stream);
void gemm_tile_2d(const GemmProblem<float>& problem, cudaStream_t stream);
void gemm_tile_2d(const GemmProblem<double>& problem, cudaStream_t stream);
void gemm_vectorized(const GemmProblem<float>& problem, cudaStream_t stream);
void gemm_warp_tile(const GemmProblem<float>& problem, cudaStream_t stream);
void gemm_double_buffered(const GemmProblem<float>& problem, cudaStream_t stream);
void gemm_tensor_tf32(const GemmProblem<float>& problem, cudaStream_t stream);
/// Rungs 10 and 11: T is BFloat16 or Half, C is T or float. Rung 10 takes what can_round(), too.
template <class T, class C>
void gemm_tensor_16(const GemmProblem<T, C>& problem, cudaStream_t stream);
/// On other GPUs than Hopper's (the simulated one is one if it is asked to be: docs/simulator.md),
/// and for rows that the copy engine cannot take, these call their portable twins, gemm_tensor_*.
template <class T, class C>
void gemm_hopper_16(const GemmProblem<T, C>& problem, cudaStream_t stream);
void gemm_hopper_tf32(const GemmProblem<float>& problem, cudaStream_t stream);

/// Whether rung 10 takes products with factors of f32 that lie in this way. They are those of a
/// layer, x w^T, dz w and dz^T x: w and the last one's result are f32, any of the others may be.
constexpr bool rounds_in_layout(bool transpose_a, bool transpose_b, bool b_f32, bool c_f32) {
  return transpose_a ? !transpose_b && c_f32 : b_f32;
}
/// Whether gemm() takes the factors of f32 that p has. If not, they are to be cast before.
template <class T, class C>
bool can_round(const GemmProblem<T, C>& p) {
  return rounds_on_the_way(p.m, p.n, p.k) &&
         rounds_in_layout(p.transpose_a, p.transpose_b, p.b_f32 != nullptr,
                          std::is_same_v<C, float>);
}

/// Rungs 8 to 10 with a given plan, instead of the one that plan_product makes. plan.tile is a row
/// of the rung's table in slice_plan.h; with factors of f32, of rounding_speeds. (hopper/hopper.h:
/// rungs 11 and 12.)
void gemm_double_buffered(const GemmProblem<float>& problem, const Plan& plan, cudaStream_t stream);
void gemm_tensor_tf32(const GemmProblem<float>& problem, const Plan& plan, cudaStream_t stream);
template <class T, class C>
void gemm_tensor_16(const GemmProblem<T, C>& problem, const Plan& plan, cudaStream_t stream);

/// One row of a table that tests and benchmarks go through.
template <class T>
struct Rung {
  int number;
  std::string_view name;   ///< of its file, without the ending: "01_naive"
  bool tf32;               ///< rounds its inputs to tf32
  std::string_view needs;  ///< "sm_90a": elsewhere this rung is its twin; "": nothing
  void (*run)(const GemmProblem<T>&, cudaStream_t);
};

/// All rungs for inputs of type float, double, BFloat16 or Half, in ascending order.
template <class T>
std::span<const Rung<T>> rungs();

}  // namespace lockstep::kernels::cuda
