#pragma once
/// Differentiable changes of shape and order. Those that cannot share memory copy; tensors are
/// always contiguous. Any dtype; gradients flow through floating ones.

#include <limits>
#include <span>
#include <vector>

#include "lockstep/autograd/ops/dims.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

Tensor transpose(const Tensor& x, int a, int b);                ///< two dimensions exchanged
Tensor permute(const Tensor& x, const std::vector<int>& dims);  ///< dimension i becomes dims[i]'s
Tensor flatten(const Tensor& x, int first = 0);  ///< dimensions from `first` on as one
Tensor unsqueeze(const Tensor& x, int dim);      ///< a new dimension of 1 before `dim`
Tensor squeeze(const Tensor& x, int dim);        ///< without a dimension of 1
Tensor squeeze(const Tensor& x);                 ///< without any dimension of 1
Tensor flip(const Tensor& x, const Dims& dims);  ///< the other way round

/// Rows [begin, end) of a dimension; negative ones count from the end, and what lies beyond the
/// tensor is cut off, as in Python.
Tensor slice(const Tensor& x, int dim, std::int64_t begin,
             std::int64_t end = std::numeric_limits<std::int64_t>::max());
/// One row of a dimension, which is gone: x[i]. Throws ShapeError for a row that does not exist.
Tensor select(const Tensor& x, int dim, std::int64_t i);
/// The dimension cut into `parts` of ceil(n / parts) rows, the last perhaps shorter or absent.
std::vector<Tensor> chunk(const Tensor& x, int parts, int dim = 0);

/// One after another along a dimension; all other sizes are alike. Throws ShapeError for none.
Tensor cat(const std::vector<Tensor>& tensors, int dim = 0);
/// Beside each other along a new dimension.
Tensor stack(const std::vector<Tensor>& tensors, int dim = 0);

}  // namespace lockstep
