/// Rungs 11 and 12 in builds for GPUs before Hopper alone: they are their twins.

#include "lockstep/kernels/cuda/gemm/hopper.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"

namespace lockstep::kernels::cuda {

bool hopper_available() { return false; }

void gemm_hopper_bf16(const GemmProblem<BFloat16>& problem, cudaStream_t stream) {
  gemm_tensor_bf16(problem, stream);
}

void gemm_hopper_f16(const GemmProblem<Half>& problem, cudaStream_t stream) {
  gemm_tensor_f16(problem, stream);
}

void gemm_hopper_bf16(const GemmProblem<BFloat16, float>& problem, cudaStream_t stream) {
  gemm_tensor_bf16(problem, stream);
}

void gemm_hopper_f16(const GemmProblem<Half, float>& problem, cudaStream_t stream) {
  gemm_tensor_f16(problem, stream);
}

void gemm_hopper_tf32(const GemmProblem<float>& problem, cudaStream_t stream) {
  gemm_tensor_tf32(problem, stream);
}

}  // namespace lockstep::kernels::cuda
