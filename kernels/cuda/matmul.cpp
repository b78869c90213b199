// Matrix products on a GPU: who computes them.
#include "lockstep/core/cuda/stream.h"
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/cublas.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"

namespace lockstep::kernels {
namespace {

void handwritten(const GemmProblem<float>& problem, cudaStream_t stream) {
  if (tf32_allowed())
    cuda::gemm_tf32(problem, stream);
  else
    cuda::gemm(problem, stream);
}

template <class T>
void handwritten(const GemmProblem<T>& problem, cudaStream_t stream) {
  cuda::gemm(problem, stream);
}

}  // namespace

bool has_cublas() { return cuda::cublas_available(); }

void CudaBackend::matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                         const MatmulFlags& flags) {
  const cudaStream_t stream = lockstep::cuda::queue_of(out).stream;
  visit_any_floating("matmul", a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    GemmProblem<T> problem = problem_of<T>(a, b, bias, out, flags);
    const bool fused = bias.defined() && !is_differentiable(a.dtype());  // only ours add that bias
    if (fused || gemm_library() == GemmLibrary::handwritten) return handwritten(problem, stream);
    cuda::cublas_gemm(problem, stream, tf32_allowed());
    if (bias.defined()) bias_activation(out, bias, Activation::none, out);
  });
}

}  // namespace lockstep::kernels
