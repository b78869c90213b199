#include "lockstep/kernels/cpu/chain/multiply.h"

namespace lockstep::kernels {

void cpu::chain_gemm(const GemmProblem<float>& problem, std::span<const std::int64_t> lanes) {
  chain::multiply<chain::Widest>(problem, lanes);
}

}  // namespace lockstep::kernels
