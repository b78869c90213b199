#pragma once
/// When rungs 11 and 12 use Hopper's own instructions, and when they are their portable twins.

#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

#include "lockstep/kernels/cuda/gemm/hopper/plan.h"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels::cuda {

/// Whether they are compiled in and the current device is a Hopper (compute capability 9.x).
bool hopper_available();

/// Whether the copy engine can take the rows of a matrix with `inner` elements per row: it wants
/// their addresses to be multiples of 16 bytes (cuTensorMapEncodeTiled).
template <class T>
bool hopper_rows(const T* matrix, std::int64_t inner) {
  return reinterpret_cast<std::uintptr_t>(matrix) % 16 == 0 &&
         inner * static_cast<std::int64_t>(sizeof(T)) % 16 == 0;
}

/// Whether the Hopper kernels can take the problem: all rows at multiples of 16 bytes, and
/// coordinates that fit the copy engine's 32 bits. A pure function of shapes and addresses.
template <class T, class C>
bool hopper_can(const GemmProblem<T, C>& p) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max() / 2;
  return !p.rounds() && p.m <= most && p.n <= most && p.k <= most && hopper_rows(p.c, p.n) &&
         (p.positive == nullptr || hopper_rows(p.positive, p.n)) &&
         hopper_rows(p.a, p.transpose_a ? p.m : p.k) && hopper_rows(p.b, p.transpose_b ? p.k : p.n);
}

/// What hopper_plan wants to know of the problem.
template <class T, class C>
HopperSizes hopper_sizes(const GemmProblem<T, C>& p) {
  const bool turns = sizeof(T) == 4;
  return {p.m, p.n, p.k, sizeof(T), sizeof(C), turns && p.transpose_a, turns && !p.transpose_b};
}

/// Rungs 11 and 12 with a given plan; ladder.h has those that make their own.
template <class T, class C>
void gemm_hopper_16(const GemmProblem<T, C>& problem, const HopperPlan& plan, cudaStream_t stream);
void gemm_hopper_tf32(const GemmProblem<float>& problem, const HopperPlan& plan,
                      cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
