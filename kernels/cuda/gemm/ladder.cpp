// Which rung computes what by default, and the list of all of them.
#include "lockstep/kernels/cuda/gemm/ladder.h"

#include <type_traits>

#include "lockstep/kernels/cuda/gemm/hopper/hopper.h"

namespace lockstep::kernels::cuda {

namespace {

/// The Hopper rungs, where they can run and their estimated time is less than that of their twins.
template <class T, class C>
void run_faster(const GemmProblem<T, C>& p, cudaStream_t stream) {
  constexpr bool tf32 = std::is_same_v<T, float>;
  const HopperSizes sizes = hopper_sizes(p);
  const Estimate twin = twin_plan(sizes);
  if (hopper_can(p) && hopper_available()) {
    const HopperEstimate hopper = hopper_plan(sizes);
    if (hopper.cycles <= twin.cycles) {
      if constexpr (tf32)
        return gemm_hopper_tf32(p, hopper.plan, stream);
      else
        return gemm_hopper_16(p, hopper.plan, stream);
    }
  }
  if constexpr (tf32)
    gemm_tensor_tf32(p, twin.plan, stream);
  else
    gemm_tensor_16(p, twin.plan, stream);
}

}  // namespace

void gemm(const GemmProblem<float>& p, cudaStream_t stream) { gemm_double_buffered(p, stream); }
void gemm(const GemmProblem<double>& p, cudaStream_t stream) { gemm_tile_2d(p, stream); }
void gemm_tf32(const GemmProblem<float>& p, cudaStream_t stream) { run_faster(p, stream); }

template <class T, class C>
void gemm(const GemmProblem<T, C>& p, cudaStream_t stream) {
  if (p.rounds()) return gemm_tensor_16(p, stream);
  run_faster(p, stream);
}
template void gemm(const GemmProblem<BFloat16>&, cudaStream_t);
template void gemm(const GemmProblem<Half>&, cudaStream_t);
template void gemm(const GemmProblem<BFloat16, float>&, cudaStream_t);
template void gemm(const GemmProblem<Half, float>&, cudaStream_t);

// Rungs with the plans that they make.

void gemm_double_buffered(const GemmProblem<float>& p, cudaStream_t stream) {
  gemm_double_buffered(p, plan_product(p.m, p.n, p.k, double_buffered_speeds).plan, stream);
}

void gemm_tensor_tf32(const GemmProblem<float>& p, cudaStream_t stream) {
  gemm_tensor_tf32(p, plan_product(p.m, p.n, p.k, tensor_tf32_speeds).plan, stream);
}

template <class T, class C>
void gemm_tensor_16(const GemmProblem<T, C>& p, cudaStream_t stream) {
  const Estimate estimate = p.rounds() ? plan_product(p.m, p.n, p.k, rounding_speeds)
                                       : plan_product(p.m, p.n, p.k, tensor_16_speeds);
  gemm_tensor_16(p, estimate.plan, stream);
}
template void gemm_tensor_16(const GemmProblem<BFloat16>&, cudaStream_t);
template void gemm_tensor_16(const GemmProblem<Half>&, cudaStream_t);
template void gemm_tensor_16(const GemmProblem<BFloat16, float>&, cudaStream_t);
template void gemm_tensor_16(const GemmProblem<Half, float>&, cudaStream_t);

template <class T, class C>
void gemm_hopper_16(const GemmProblem<T, C>& p, cudaStream_t stream) {
  gemm_hopper_16(p, hopper_plan(hopper_sizes(p)).plan, stream);
}
template void gemm_hopper_16(const GemmProblem<BFloat16>&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<Half>&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<BFloat16, float>&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<Half, float>&, cudaStream_t);

void gemm_hopper_tf32(const GemmProblem<float>& p, cudaStream_t stream) {
  gemm_hopper_tf32(p, hopper_plan(hopper_sizes(p)).plan, stream);
}

template <>
std::span<const Rung<float>> rungs() {
  static constexpr Rung<float> all[] = {
      {1, "01_naive", false, "", gemm_naive},
      {2, "02_coalesced", false, "", gemm_coalesced},
      {3, "03_shared", false, "", gemm_shared},
      {4, "04_tile_1d", false, "", gemm_tile_1d},
      {5, "05_tile_2d", false, "", gemm_tile_2d},
      {6, "06_vectorized", false, "", gemm_vectorized},
      {7, "07_warp_tile", false, "", gemm_warp_tile},
      {8, "08_double_buffered", false, "", gemm_double_buffered},
      {9, "09_tensor_tf32", true, "", gemm_tensor_tf32},
      {12, "12_hopper_tf32", true, "sm_90a", gemm_hopper_tf32},
  };
  return all;
}

template <>
std::span<const Rung<double>> rungs() {
  static constexpr Rung<double> all[] = {
      {1, "01_naive", false, "", gemm_naive},
      {5, "05_tile_2d", false, "", gemm_tile_2d},
  };
  return all;
}

template <>
std::span<const Rung<BFloat16>> rungs() {
  static constexpr Rung<BFloat16> all[] = {
      {10, "10_tensor_bf16", false, "", gemm_tensor_16},
      {11, "11_hopper_bf16", false, "sm_90a", gemm_hopper_16},
  };
  return all;
}

template <>
std::span<const Rung<Half>> rungs() {
  static constexpr Rung<Half> all[] = {
      {10, "10_tensor_bf16", false, "", gemm_tensor_16},
      {11, "11_hopper_bf16", false, "sm_90a", gemm_hopper_16},
  };
  return all;
}

}  // namespace lockstep::kernels::cuda
