#include "lockstep/core/error.h"
#include "lockstep/kernels/cpu/gemm_eigen.h"

namespace lockstep::kernels {

std::string_view bf16_unit() { return ""; }

void cpu::gemm(const GemmProblem<float>& problem) { gemm_eigen(problem); }

void cpu::gemm(const GemmProblem<BFloat16, float>&) {
  fail<Error>("[matmul] this build has no oneDNN, which multiplies bf16");
}

}  // namespace lockstep::kernels
