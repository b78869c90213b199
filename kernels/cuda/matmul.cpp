// Matrix products on a GPU: what computes them.
#include "lockstep/core/cuda/stream.h"
#include "lockstep/kernels/backend/blocks_apart.h"
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

template <class T, class C>
void handwritten(const GemmProblem<T, C>& problem, cudaStream_t stream) {
  cuda::gemm(problem, stream);
}

template <class T, class C>
void multiply_on_gpu(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                     const MatmulFlags& flags) {
  const cudaStream_t stream = lockstep::cuda::queue_of(out).stream;
  const GemmProblem<T, C> problem = problem_of<T, C>(a, b, bias, out, flags);
  const bool fused = bias.defined() && !is_differentiable(out.dtype());  // only ours add that bias
  if (fused || gemm_library() == GemmLibrary::handwritten) return handwritten(problem, stream);
  cuda::cublas_gemm(problem, stream, tf32_allowed());
  if (bias.defined()) binary(Binary::add, out, bias, out);
}

}  // namespace

bool has_cublas() { return cuda::cublas_available(); }

void CudaBackend::matmul(const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                         const MatmulFlags& flags) {
  visit_any_floating("matmul", a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      if (out.dtype() == DType::f32) return multiply_on_gpu<T, float>(a, b, bias, out, flags);
    multiply_on_gpu<T, T>(a, b, bias, out, flags);
  });
}

void CudaBackend::matmul_blocks(const Tensor& a, const Tensor& b, const Tensor& out,
                                RowBlocks blocks, bool accumulate) {
  matmul_blocks_apart(a, b, out, blocks, accumulate);
}

}  // namespace lockstep::kernels
