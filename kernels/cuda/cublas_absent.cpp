// In place of cublas.cpp, in the simulator and where cuBLAS was not found.
#include "lockstep/core/error.h"
#include "lockstep/kernels/cuda/cublas.h"

namespace lockstep::kernels::cuda {

bool cublas_available() { return false; }

template <class T, class C>
void cublas_gemm(const GemmProblem<T, C>&, cudaStream_t, bool) {
  fail<DeviceError>("[matmul] this build has no cuBLAS");
}
template void cublas_gemm(const GemmProblem<float>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<double>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<Half>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<BFloat16>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<Half, float>&, cudaStream_t, bool);
template void cublas_gemm(const GemmProblem<BFloat16, float>&, cudaStream_t, bool);

}  // namespace lockstep::kernels::cuda
