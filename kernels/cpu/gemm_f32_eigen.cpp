#include "lockstep/kernels/cpu/gemm_eigen.h"

namespace lockstep::kernels::cpu {

void gemm(const GemmProblem<float>& problem) { gemm_eigen(problem); }

}  // namespace lockstep::kernels::cpu
