#pragma once
/// Rows and elements by index (i64). An index outside its dimension throws DataError: on the cpu at
/// once, on a GPU at the next wait. Gradients of a row that is taken several times add up, in the
/// order of the indices.

#include "lockstep/core/tensor.h"

namespace lockstep {

/// The rows `index` (k,) of a dimension.
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// The rows of a table (n, c), by indices of any shape: index.shape() + (c,).
Tensor embedding(const Tensor& table, const Tensor& index);
/// out[i][j] = x[i][index[i][j]] for dim 1, and likewise: `index` has x's shape but for `dim`.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// i64 labels.shape() + (classes,): 1 at the label, else 0.
Tensor one_hot(const Tensor& labels, std::int64_t classes);

}  // namespace lockstep
