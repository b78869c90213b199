#pragma once
/// Differentiable reductions along dimensions. Floating operands; sum, cumsum, max, min and argmax
/// take integers and masks too, which are exact below 2^53. Those of f16 and bf16 are computed in
/// f32 and rounded once more.
///
/// Accuracy, on the cpu: sums are computed in f64, pairwise, and rounded once (kernels/reduce.h).
/// In f32, sum, mean, norm and cumsum are then the exact ones, rounded, as long as terms of both
/// signs do not cancel by a factor of 2^29; var and stdev are within 4 units in the last place,
/// however far from 0 the elements lie; logsumexp within the error of exp. amax and its like are
/// exact. A GPU adds up in the elements' own dtype, but for norm.

#include "lockstep/autograd/ops/dims.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// sum(x): of all elements -> (). Integers and masks give i64.
Tensor sum(const Tensor& x, const Dims& dims = Dims::all(), KeepDim keep = KeepDim::no);
/// The mean of nothing is 0.
Tensor mean(const Tensor& x, const Dims& dims = Dims::all(), KeepDim keep = KeepDim::no);

/// Of var and stdev.
struct VarianceOptions {
  double correction = 1;  ///< divides by n - correction (Bessel's is 1), by 0 if that is negative
  bool keepdim = false;
};
/// The variance along dimensions, and its root. Deviations are those from the exact mean: of equal
/// elements both are 0. Of fewer elements than the correction: infinity, or NaN if they are equal.
Tensor var(const Tensor& x, const Dims& dims = Dims::all(), VarianceOptions options = {});
Tensor stdev(const Tensor& x, const Dims& dims = Dims::all(), VarianceOptions options = {});

/// sqrt(sum of squares), which do not overflow (they are f64). Its gradient at 0 is 0.
Tensor norm(const Tensor& x, const Dims& dims = Dims::all(), KeepDim keep = KeepDim::no);

/// The largest element; equal ones share its gradient. NaN is largest. Throws ShapeError for a
/// dimension of size 0.
Tensor amax(const Tensor& x, const Dims& dims, KeepDim keep = KeepDim::no);
Tensor amin(const Tensor& x, const Dims& dims, KeepDim keep = KeepDim::no);
Tensor max(const Tensor& x);  ///< amax of all elements
Tensor min(const Tensor& x);  ///< amin of all elements

/// The largest (smallest) along a dimension, and where it is: i64, the first of equals, which gets
/// the whole gradient.
struct Extreme {
  Tensor values, indices;
};
Extreme max(const Tensor& x, int dim);
Extreme min(const Tensor& x, int dim);
Extreme max(const Tensor& x, double) = delete;  ///< of a tensor and a number: clamp_min
Extreme min(const Tensor& x, double) = delete;  ///< clamp_max
Tensor argmax(const Tensor& x, int dim);
Tensor argmin(const Tensor& x, int dim);
Tensor argmax(const Tensor& x);  ///< of all elements, counted in their order -> ()
Tensor argmin(const Tensor& x);

/// exp(x) / sum(exp(x)) along a dimension, and its logarithm; without overflow.
Tensor softmax(const Tensor& x, int dim);
Tensor log_softmax(const Tensor& x, int dim);
/// log(sum(exp(x))), without overflow. Of nothing, or of -infinity alone, it is -infinity.
Tensor logsumexp(const Tensor& x, int dim, KeepDim keep = KeepDim::no);
/// y_k = x_0 + ... + x_k along a dimension, one after the other, those of f32 in f64. Integers and
/// masks give i64.
Tensor cumsum(const Tensor& x, int dim);

/// u8 (): whether any (all) of a mask's elements are not 0.
Tensor any(const Tensor& mask);
Tensor all(const Tensor& mask);

}  // namespace lockstep
