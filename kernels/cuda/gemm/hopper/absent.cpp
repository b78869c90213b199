/// Rungs 11 and 12 in builds for GPUs before Hopper alone: they are their twins.

#include "lockstep/kernels/cuda/gemm/hopper/hopper.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"

namespace lockstep::kernels::cuda {

bool hopper_available() { return false; }

template <class T, class C>
void gemm_hopper_16(const GemmProblem<T, C>& problem, const HopperPlan&, cudaStream_t stream) {
  gemm_tensor_16(problem, stream);
}
template void gemm_hopper_16(const GemmProblem<BFloat16>&, const HopperPlan&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<Half>&, const HopperPlan&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<BFloat16, float>&, const HopperPlan&, cudaStream_t);
template void gemm_hopper_16(const GemmProblem<Half, float>&, const HopperPlan&, cudaStream_t);

void gemm_hopper_tf32(const GemmProblem<float>& problem, const HopperPlan&, cudaStream_t stream) {
  gemm_tensor_tf32(problem, stream);
}

}  // namespace lockstep::kernels::cuda
