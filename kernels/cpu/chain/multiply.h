#pragma once
/// Chain products by vectors of one type of vectors.h, for code that compares the types.

#include "lockstep/kernels/cpu/chain/vectors.h"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels::chain {

/// As cpu::chain_gemm, which takes the widest vectors.
template <class V>
void multiply(const GemmProblem<typename V::Element>& problem,
              std::span<const std::int64_t> blocks);

}  // namespace lockstep::kernels::chain
