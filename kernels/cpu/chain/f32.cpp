#include "lockstep/kernels/cpu/chain/product.h"

namespace lockstep::kernels {

template void chain::multiply<chain::Scalar<float>>(const GemmProblem<float>&,
                                                    std::span<const std::int64_t>);
#ifdef LOCKSTEP_CHAIN_AVX2
template void chain::multiply<chain::Avx2<float>>(const GemmProblem<float>&,
                                                  std::span<const std::int64_t>);
#endif
#ifdef LOCKSTEP_CHAIN_AVX512
template void chain::multiply<chain::Avx512<float>>(const GemmProblem<float>&,
                                                    std::span<const std::int64_t>);
#endif

void cpu::chain_gemm(const GemmProblem<float>& problem, std::span<const std::int64_t> lanes) {
  chain::multiply<chain::Widest<float>>(problem, lanes);
}

}  // namespace lockstep::kernels
