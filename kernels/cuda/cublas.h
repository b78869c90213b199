#pragma once
/// cuBLAS beside the handwritten products: the same problem, the same result to rounding.

#include <cuda_runtime.h>

#include "lockstep/core/half.h"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels::cuda {

/// False where cublas_absent.cpp is linked in place of cublas.cpp.
bool cublas_available();

/// c (+)= op(a) op(b), enqueued on `stream`; `bias` is left to the caller. f32 sums for all but
/// f64. `tf32`: f32 inputs may be rounded to it. T is any floating type; C is T, or float for
/// factors of 16 bits.
template <class T, class C>
void cublas_gemm(const GemmProblem<T, C>& problem, cudaStream_t stream, bool tf32);

}  // namespace lockstep::kernels::cuda
