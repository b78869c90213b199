#pragma once
/// Matrix products, row-major: f32, f64, and f16 and bf16, which are multiplied exactly and added
/// up in f32. On the CPU, on the calling thread alone, f32 goes to oneDNN where it was found at
/// configuration, else to Eigen; f64 to Eigen; bf16 to bf16_unit(); what is left is multiplied as
/// f32. On a GPU `gemm_library` chooses. Empty dimensions are allowed: a product over K = 0 is all
/// zeros.
///
/// Dtypes: a and b alike, and so `out` and the bias. Or a and b of 16 bits, `out` and the bias f32:
/// then nothing is rounded after the product.

#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// Who multiplies on GPUs: the ladder in cuda/gemm/, or cuBLAS.
enum class GemmLibrary : std::uint8_t { handwritten, cublas };
/// Per process; at first cuBLAS where the build has it. Throws UsageError for cuBLAS where not.
void set_gemm_library(GemmLibrary library);
GemmLibrary gemm_library();
bool has_cublas();

/// Whether f32 products on GPUs may round their inputs to tf32 (10 bits of mantissa), for tensor
/// cores. Off at first.
void allow_tf32(bool allow);
bool tf32_allowed();

/// What this processor multiplies bf16 with, through oneDNN: "AMX", "AVX512-BF16", or "": nothing,
/// or there is no oneDNN. Both take numbers below 1e-38 for 0.
std::string_view bf16_unit();

struct MatmulFlags {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

/// out (+)= op(a) op(b), with op(a) (M, K), op(b) (K, N), out (M, N); op transposes on demand:
/// with transpose_a, `a` itself is (K, M). `out` must not overlap a or b.
void matmul(const Tensor& a, const Tensor& b, const Tensor& out, MatmulFlags flags = {});

/// out = x w^T + bias: x (N, in), w (out, in) as PyTorch keeps it, bias (out,) or undefined,
/// out (N, out). On GPUs the handwritten products add the bias as they write.
///
/// Backward is three calls: dx = matmul(dy, w); dw = matmul(dy, x, transpose_a);
/// dbias = sum_rows(dy).
void linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& out);

}  // namespace lockstep::kernels
