// In place of cublas.cpp, in the simulator and where cuBLAS was not found.
#include "lockstep/core/error.h"
#include "lockstep/kernels/cuda/cublas.h"

namespace lockstep::kernels::cuda {
namespace {
[[noreturn]] void absent() { fail<DeviceError>("[matmul] this build has no cuBLAS"); }
}  // namespace

bool cublas_available() { return false; }

void cublas_gemm(const GemmProblem<float>&, cudaStream_t, bool) { absent(); }
void cublas_gemm(const GemmProblem<double>&, cudaStream_t, bool) { absent(); }
void cublas_gemm(const GemmProblem<Half>&, cudaStream_t, bool) { absent(); }
void cublas_gemm(const GemmProblem<BFloat16>&, cudaStream_t, bool) { absent(); }
void cublas_gemm(const GemmProblem<Half, float>&, cudaStream_t, bool) { absent(); }
void cublas_gemm(const GemmProblem<BFloat16, float>&, cudaStream_t, bool) { absent(); }

}  // namespace lockstep::kernels::cuda
