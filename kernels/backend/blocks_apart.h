#pragma once
/// matmul_blocks for backends that have no kernel for it.

#include "lockstep/kernels/matmul.h"

namespace lockstep::kernels {

/// Writes each block's product into a separate matrix, then adds the matrices in the tree.
/// Arguments are checked already, as those of Backend::matmul_blocks.
void matmul_blocks_apart(const Tensor& a, const Tensor& b, const Tensor& out, RowBlocks blocks,
                         bool accumulate);

}  // namespace lockstep::kernels
