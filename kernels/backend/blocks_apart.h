#pragma once
/// matmul_blocks for backends without a kernel of their own for it.

#include "lockstep/kernels/matmul.h"

namespace lockstep::kernels {

/// Every block's product into a matrix of its own, then the tree over the matrices. Arguments are
/// checked, as those of Backend::matmul_blocks.
void matmul_blocks_apart(const Tensor& a, const Tensor& b, const Tensor& out, RowBlocks blocks,
                         bool accumulate);

}  // namespace lockstep::kernels
