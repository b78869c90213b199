#pragma once
/// Matrix products, row-major: f32, f64, and f16 and bf16, which are multiplied exactly and added
/// up in f32. On the CPU, on the calling thread alone, f32 goes to oneDNN where it was found at
/// configuration, else to Eigen; f64 to Eigen; both elsewhere under `ChainProducts`; bf16 to
/// bf16_unit(); what is left is multiplied as f32. On a GPU `gemm_library` chooses. Empty
/// dimensions are allowed: a product over K = 0 is all zeros.
///
/// Dtypes: a and b alike, and so `out` and the bias. Where a and b are of 16 bits, the bias may be
/// f32, and so may `out`, with its bias: then nothing is rounded after the product.
///
/// `round_to` bf16 or f16: factors may also be f32. They are rounded to that dtype, to the nearest
/// and ties to even, as cast() does, and the product is that of 16-bit factors. rounds_factors()
/// says where this costs less than a cast() before it.

#include <cstdint>
#include <span>
#include <string_view>

#include "lockstep/core/system/thread_scope.h"
#include "lockstep/core/tensor.h"

namespace lockstep::kernels {

/// What multiplies on GPUs: the ladder in cuda/gemm/, cuBLAS, or for each product the one of them
/// that takes less time, as far as is known (cuda/gemm/beside_cublas.h). cuBLAS multiplies f64.
enum class GemmLibrary : std::uint8_t { fastest, handwritten, cublas };
/// Per process; at first `fastest`, or `handwritten` where the build has no cuBLAS. Throws
/// UsageError there for another one.
void set_gemm_library(GemmLibrary library);
GemmLibrary gemm_library();
bool has_cublas();

/// While one lives, the handwritten products of cpu/chain/ multiply this thread's f32 and f64 on
/// the CPU, in place of the library. A tape whose rows are cut has one.
///
/// A chain product computes every element alone, as one chain of fused multiply-adds over k in
/// ascending order: sum = fma(a_k, b_k, sum). The chain starts at +0, with `accumulate` at what
/// `out` holds, in linear() at the bias. So an element's bits depend on its row of op(a), its
/// column of op(b) and its start alone: not on the rows beside it, the widths of vectors, the
/// processor or the compiler. (NaNs are NaNs everywhere; which NaN is left open.) A library
/// promises none of it. Products of 16-bit factors that are multiplied as f32 are chains, too.
class [[nodiscard]] ChainProducts : public ThreadScope<ChainProducts> {
 public:
  ChainProducts() : ThreadScope("ChainProducts") {}
  /// Whether one lives.
  static bool on() { return innermost() != nullptr; }
};

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
  DType round_to = DType::f32;  ///< bf16 or f16: what factors of f32 are rounded to; f32: none is
};

/// Whether products of these sizes (m, k) (k, n) on this device round factors of f32 in their own
/// kernel, as far as they are those of a linear layer: linear(), linear_gradients() into f32, and
/// dx. Others, and all products on the CPU, cast them to new memory first: a caller who multiplies
/// by a factor several times had better do so itself, once. The same for any order of m, n and k.
bool rounds_factors(Device device, std::int64_t m, std::int64_t n, std::int64_t k);

/// What becomes of the sums of a product before they are stored, in this order. On GPUs the kernel
/// of the product does it. None goes with `accumulate`.
struct Epilogue {
  Tensor bias{};      ///< (N,), added to each row; undefined: none
  bool relu = false;  ///< what is <= 0 becomes 0
  Tensor positive{};  ///< (M, N), of out's dtype: 0 where this is <= 0, which is relu's backward
};

/// Where blocks of rows begin, and the end; it ascends from 0. Empty: there are none.
using RowBlocks = std::span<const std::int64_t>;
inline constexpr int max_blocks = 64;  ///< of matmul_blocks()

/// out (+)= op(a) op(b), with op(a) (M, K), op(b) (K, N), out (M, N); op transposes on demand:
/// with transpose_a, `a` itself is (K, M). `out` must not overlap a or b.
///
/// With `blocks` of the rows of `a`, which must not be transposed, the bits of a row depend on its
/// block alone, and not on the other blocks. (A library may choose by the number of rows how it
/// multiplies.) Products of f32 and f64 on the CPU are then chains, all others are made block by
/// block.
void matmul(const Tensor& a, const Tensor& b, const Tensor& out, MatmulFlags flags = {},
            RowBlocks blocks = {}, const Epilogue& epilogue = {});

/// out (+)= sum over the blocks of a_block^T b_block: the gradient of weights, whose bits then
/// depend on the blocks alone, and not on which rank has computed which of them. a is (K, M),
/// b (K, N), out (M, N) in f32 or f64, and `flags` has transpose_a without transpose_b.
///
/// Block i is the rows [blocks[i], blocks[i + 1]) of a and b; `blocks` ascends from 0 to K. There
/// are 1, 2, 4, ... max_blocks; one without rows counts as +0. The bits are those of the blocks'
/// products, each made by one matmul() into an empty `out`, added up by the tree of tree_reduce.h;
/// with `accumulate` the sum is then added to `out`. Chain products on the CPU keep the partial
/// sums in the first-level cache. All others write them to memory, a matrix of out's size for each
/// block. `out` must not overlap a or b. Throws UsageError for other flags, ShapeError for blocks
/// that do not fit. It rounds no factors.
void matmul_blocks(const Tensor& a, const Tensor& b, const Tensor& out, RowBlocks blocks,
                   MatmulFlags flags = {.transpose_a = true});

/// out = x w^T, and what the epilogue makes of it: x (N, in), w (out, in) as PyTorch keeps it, bias
/// (out,) or undefined, out (N, out).
///
/// Backward is two calls: dx = matmul(dy, w), and linear_gradients(dy, x, dw, dbias).
///
/// `blocks`: of x's rows, as of matmul. `round_to`: as of MatmulFlags.
void linear(const Tensor& x, const Tensor& w, const Epilogue& epilogue, const Tensor& out,
            RowBlocks blocks = {}, DType round_to = DType::f32);

/// Where a result goes.
struct Into {
  Tensor tensor;
  bool accumulate = false;  ///< it is added to what is there
};

/// dw (+)= dy^T x, and dbias (+)= the sum of dy's rows: dy (N, out), x (N, in), dw (out, in), dbias
/// (out,) of dw's dtype. The handwritten products of GPUs (but those of f64) do both in one kernel,
/// which reads dy once; dbias is then as exact as dw, and with tf32 the sum of rounded numbers.
/// Elsewhere these are matmul() and sum_rows(). `round_to`: as of MatmulFlags; dbias is the sum of
/// the rounded rows.
void linear_gradients(const Tensor& dy, const Tensor& x, const Into& dw, const Into& dbias,
                      DType round_to = DType::f32);

}  // namespace lockstep::kernels
