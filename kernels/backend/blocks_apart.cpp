#include "lockstep/kernels/backend/blocks_apart.h"

#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::kernels {

void matmul_blocks_apart(const Tensor& a, const Tensor& b, const Tensor& out, RowBlocks blocks,
                         bool accumulate) {
  const std::int64_t count = std::ssize(blocks) - 1;
  const Tensor parts = Tensor::empty(out.shape().with(0, 0, {count}), out.dtype(), out.device());
  for (std::int64_t k = 0; k < count; ++k) {
    const auto rows = [&](const Tensor& of) {
      const auto at = static_cast<std::size_t>(k);
      return of.detach().slice(blocks[at], blocks[at + 1]);
    };
    matmul(rows(a), rows(b), parts.slice(k, k + 1).view(out.shape()), {.transpose_a = true});
  }
  scale(1, tree_sum(parts).view(out.shape()), out, accumulate);
}

}  // namespace lockstep::kernels
