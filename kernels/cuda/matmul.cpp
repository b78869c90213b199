// Matrix products on a GPU: what computes them.
#include "lockstep/core/cuda/stream.h"
#include "lockstep/kernels/backend/after_product.h"
#include "lockstep/kernels/backend/blocks_apart.h"
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/cublas.h"
#include "lockstep/kernels/cuda/gemm/beside_cublas.h"
#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/reduce.h"

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

/// Whether the ladder makes this product.
template <class T, class C>
bool is_ours(const GemmProblem<T, C>& p) {
  const GemmLibrary library = gemm_library();
  if (library != GemmLibrary::fastest) return library == GemmLibrary::handwritten;
  if (std::is_same_v<T, double>) return false;
  const bool fused = p.bias || p.relu || p.positive || p.row_sums;
  const cuda::Precision precision = sizeof(T) == 2   ? cuda::Precision::sixteen_bits
                                    : tf32_allowed() ? cuda::Precision::tf32
                                                     : cuda::Precision::f32;
  return cuda::by_hand(precision, p.m, p.n, p.k, fused);
}

/// Whether a handwritten kernel takes p as it is. Else its factors of f32 are cast first.
template <class T, class C>
bool takes_factors(const GemmProblem<T, C>& p) {
  return !p.rounds() || (is_ours(p) && cuda::can_round(p));
}

template <class T, class C>
void multiply_on_gpu(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out,
                     const MatmulFlags& flags) {
  const bool narrow = is_16_bit(out.dtype()) && epilogue.bias.defined();  // only ours add that bias
  const Tensor bias = as(narrow ? DType::f32 : out.dtype(), epilogue.bias);
  const cudaStream_t stream = lockstep::cuda::queue_of(out).stream;
  const GemmProblem<T, C> problem =
      problem_of<T, C>(a, b, {bias, epilogue.relu, epilogue.positive}, out, flags);
  if (!takes_factors(problem))
    return multiply_on_gpu<T, C>(as(flags.round_to, a), as(flags.round_to, b), epilogue, out,
                                 flags);
  if (narrow || is_ours(problem)) return handwritten(problem, stream);
  cuda::cublas_gemm(problem, stream, tf32_allowed());
  if (bias.defined()) binary(Binary::add, out, bias, out);
  after_product(epilogue, out);
}

/// What the factors are multiplied as: `a` is one of them.
DType product_dtype(const Tensor& a, DType round_to) {
  return round_to == DType::f32 ? a.dtype() : round_to;
}

}  // namespace

bool CudaBackend::rounds_factors(std::int64_t m, std::int64_t n, std::int64_t k) {
  return gemm_library() != GemmLibrary::cublas && cuda::rounds_on_the_way(m, n, k);
}

bool has_cublas() { return cuda::cublas_available(); }

void CudaBackend::matmul(const Tensor& a, const Tensor& b, const Epilogue& epilogue,
                         const Tensor& out, const MatmulFlags& flags) {
  visit_any_floating("matmul", product_dtype(a, flags.round_to), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      if (out.dtype() == DType::f32) return multiply_on_gpu<T, float>(a, b, epilogue, out, flags);
    multiply_on_gpu<T, T>(a, b, epilogue, out, flags);
  });
}

void CudaBackend::linear_gradients(const Tensor& dy, const Tensor& x, const Into& dw,
                                   const Into& dbias, DType round_to) {
  const MatmulFlags flags{.transpose_a = true, .accumulate = dw.accumulate, .round_to = round_to};
  const auto multiply = [&]<class T, class C>(GemmProblem<T, C> problem) {
    problem.row_sums = dbias.tensor.data<C>();
    problem.accumulate_row_sums = dbias.accumulate;
    if (!takes_factors(problem))
      return linear_gradients(as(round_to, dy), as(round_to, x), dw, dbias, round_to);
    if constexpr (!std::is_same_v<T, double>)
      if (is_ours(problem)) return handwritten(problem, lockstep::cuda::queue_of(dy).stream);
    matmul(dy, x, {}, dw.tensor, flags);
    kernels::sum_rows(as(dbias.tensor.dtype(), dy), dbias.tensor, dbias.accumulate);
  };
  visit_any_floating("linear_gradients", product_dtype(dy, round_to), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>)
      if (dw.tensor.dtype() == DType::f32)
        return multiply(problem_of<T, float>(dy, x, {}, dw.tensor, flags));
    multiply(problem_of<T>(dy, x, {}, dw.tensor, flags));
  });
}

void CudaBackend::matmul_blocks(const Tensor& a, const Tensor& b, const Tensor& out,
                                RowBlocks blocks, bool accumulate) {
  matmul_blocks_apart(a, b, out, blocks, accumulate);
}

}  // namespace lockstep::kernels
