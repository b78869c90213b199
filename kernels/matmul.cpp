#include "lockstep/kernels/matmul.h"

#include <atomic>
#include <bit>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/kernels/backend/after_product.h"
#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/checks.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::kernels {
namespace {

std::atomic<bool> tf32 = false;

GemmLibrary first_library() {
  return has_cublas() ? GemmLibrary::fastest : GemmLibrary::handwritten;
}

std::atomic<GemmLibrary>& library() {
  static std::atomic<GemmLibrary> chosen = first_library();
  return chosen;
}

// A recorded step has the kernels that were chosen then.
void tell_recorded_steps() {
  [[maybe_unused]] static const bool told = [] {
    StepGraph::depends_on_surroundings([]() -> std::uint64_t {
      const GemmLibrary now = library();
      const bool same = now == first_library();
      return (same ? 0 : 1 + static_cast<std::uint64_t>(now)) * 2 + (tf32 ? 1 : 0);
    });
    return true;
  }();
}

std::string describe(const Tensor& matrix, bool transposed) {
  return matrix.shape().to_string() + (transposed ? "^T" : "");
}

/// The shape of the product.
Shape check_product(std::string_view operation, const Tensor& a, const Tensor& b, const Tensor& out,
                    const MatmulFlags& flags) {
  check_defined(operation, "a", a);
  check_floating(operation, a);
  const DType round_to = flags.round_to;
  check<DTypeError>(round_to == DType::f32 || is_16_bit(round_to),
                    "[{}] factors are rounded to bf16 or f16, not to {}", operation, round_to);
  const bool rounds = round_to != DType::f32;
  const DType dtype = rounds ? round_to : a.dtype();
  const auto factor_dtype = [&](const Tensor& x) {
    return rounds && x.defined() && x.dtype() == DType::f32 ? DType::f32 : dtype;
  };
  check_beside(operation, "a", a, factor_dtype(a), a);
  check_beside(operation, "b", b, factor_dtype(b), a);
  const bool mixed = is_16_bit(dtype) && out.defined() && out.dtype() == DType::f32;
  check_beside(operation, "out", out, mixed ? DType::f32 : dtype, a);
  check_rank(operation, "a", a, 2);
  check_rank(operation, "b", b, 2);
  const std::int64_t m = a.size(flags.transpose_a ? 1 : 0), k = a.size(flags.transpose_a ? 0 : 1);
  const std::int64_t n = b.size(flags.transpose_b ? 0 : 1);
  if (k != b.size(flags.transpose_b ? 1 : 0))
    fail<ShapeError>("[{}] inner dimensions differ: {} x {}", operation,
                     describe(a, flags.transpose_a), describe(b, flags.transpose_b));
  const Shape product{m, n};
  check_shape(operation, "out", out, product);
  return product;
}

void check_blocks(RowBlocks blocks, std::int64_t k) {
  const std::size_t count = blocks.empty() ? 0 : blocks.size() - 1;
  check<ShapeError>(std::has_single_bit(count) && count <= std::size_t{max_blocks},
                    "[matmul_blocks] the number of blocks is a power of two up to {}, got {}",
                    max_blocks, count);
  check<ShapeError>(blocks.front() == 0 && blocks.back() == k,
                    "[matmul_blocks] blocks go from row 0 to row {}, got {} to {}", k,
                    blocks.front(), blocks.back());
  for (std::size_t i = 0; i < count; ++i)
    check<ShapeError>(blocks[i] <= blocks[i + 1],
                      "[matmul_blocks] block {} begins at row {} and ends at row {}", i, blocks[i],
                      blocks[i + 1]);
}

// Whether a row of a chain product with `a` on the left has the same bits beside any other rows.
bool rows_are_alone(const Tensor& a, MatmulFlags flags) {
  return a.device() == Device{} && is_differentiable(a.dtype()) && flags.round_to == DType::f32;
}

void multiply(const Tensor& a, const Tensor& b, const Epilogue& epilogue, const Tensor& out,
              MatmulFlags flags) {
  if (a.numel() > 0 && b.numel() > 0)
    return backend_of(a.device()).matmul(a, b, epilogue, out, flags);
  if (epilogue.bias.defined() && out.numel() > 0)
    broadcast_to(as(out.dtype(), epilogue.bias), out);
  else if (!flags.accumulate)
    out.fill_zero();
  after_product(epilogue, out);
}

// The product, or that of each block of rows where that makes a difference.
void by_blocks(const char* operation, const Tensor& a, const Tensor& b, const Epilogue& epilogue,
               const Tensor& out, MatmulFlags flags, RowBlocks blocks) {
  if (blocks.empty()) return multiply(a, b, epilogue, out, flags);
  check<ShapeError>(blocks.front() == 0 && blocks.back() == a.size(0),
                    "[{}] blocks go from row 0 to row {}, got {} to {}", operation, a.size(0),
                    blocks.front(), blocks.back());
  const ChainProducts chains;
  if (rows_are_alone(a, flags)) return multiply(a, b, epilogue, out, flags);
  for (std::size_t k = 0; k + 1 < blocks.size(); ++k) {
    if (blocks[k] == blocks[k + 1]) continue;
    const auto rows = [&](const Tensor& of) {
      return of.defined() ? of.detach().slice(blocks[k], blocks[k + 1]) : Tensor();
    };
    multiply(rows(a), b, {epilogue.bias, epilogue.relu, rows(epilogue.positive)}, rows(out), flags);
  }
}

void check_epilogue(const char* operation, const Epilogue& epilogue, const Tensor& out,
                    MatmulFlags flags) {
  const auto& [bias, relu, positive] = epilogue;
  check<UsageError>(!flags.accumulate || !(bias.defined() || relu || positive.defined()),
                    "[{}] accumulate with an epilogue", operation);
  if (bias.defined()) {
    const bool wide = is_16_bit(out.dtype()) && bias.dtype() == DType::f32;
    check_beside(operation, "bias", bias, wide ? DType::f32 : out.dtype(), out);
    check_shape(operation, "bias", bias, {out.size(1)});
  }
  if (positive.defined()) {
    check_beside(operation, "positive", positive, out.dtype(), out);
    check_shape(operation, "positive", positive, out.shape());
  }
}

}  // namespace

void set_gemm_library(GemmLibrary chosen) {
  check<UsageError>(chosen == GemmLibrary::handwritten || has_cublas(),
                    "[matmul] this build has no cuBLAS");
  tell_recorded_steps();
  library() = chosen;
}

GemmLibrary gemm_library() { return library(); }
void allow_tf32(bool allow) {
  tell_recorded_steps();
  tf32 = allow;
}
bool tf32_allowed() { return tf32; }

bool rounds_factors(Device device, std::int64_t m, std::int64_t n, std::int64_t k) {
  return backend_of(device).rounds_factors(m, n, k);
}

void matmul(const Tensor& a, const Tensor& b, const Tensor& out, MatmulFlags flags,
            RowBlocks blocks, const Epilogue& epilogue) {
  check_product("matmul", a, b, out, flags);
  check_epilogue("matmul", epilogue, out, flags);
  check<UsageError>(blocks.empty() || !flags.transpose_a,
                    "[matmul] blocks of rows of a transposed operand");
  by_blocks("matmul", a, b, epilogue, out, flags, blocks);
}

void matmul_blocks(const Tensor& a, const Tensor& b, const Tensor& out, RowBlocks blocks,
                   MatmulFlags flags) {
  check<UsageError>(flags.transpose_a && !flags.transpose_b,
                    "[matmul_blocks] takes transpose_a without transpose_b, got {} and {}",
                    flags.transpose_a, flags.transpose_b);
  check<UsageError>(flags.round_to == DType::f32, "[matmul_blocks] rounds no factors");
  check_product("matmul_blocks", a, b, out, flags);
  check_differentiable("matmul_blocks", out);
  check_blocks(blocks, a.size(0));
  if (out.numel() > 0) backend_of(a.device()).matmul_blocks(a, b, out, blocks, flags.accumulate);
}

void linear(const Tensor& x, const Tensor& w, const Epilogue& epilogue, const Tensor& out,
            RowBlocks blocks, DType round_to) {
  const MatmulFlags flags{.transpose_b = true, .round_to = round_to};
  check_product("linear", x, w, out, flags);
  check_epilogue("linear", epilogue, out, flags);
  by_blocks("linear", x, w, epilogue, out, flags, blocks);
}

void linear_gradients(const Tensor& dy, const Tensor& x, const Into& dw, const Into& dbias,
                      DType round_to) {
  const MatmulFlags flags{.transpose_a = true, .accumulate = dw.accumulate, .round_to = round_to};
  check_product("linear_gradients", dy, x, dw.tensor, flags);
  check_beside("linear_gradients", "dbias", dbias.tensor, dw.tensor.dtype(), dy);
  check_shape("linear_gradients", "dbias", dbias.tensor, {dy.size(1)});
  if (dy.numel() > 0 && x.numel() > 0)
    return backend_of(dy.device()).linear_gradients(dy, x, dw, dbias, round_to);
  multiply(dy, x, {}, dw.tensor, flags);
  sum_rows(as(dbias.tensor.dtype(), rounded_factor(round_to, dy)), dbias.tensor, dbias.accumulate);
}

}  // namespace lockstep::kernels
