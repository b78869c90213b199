#pragma once
/// Comparisons, masks, and choices among elements. A mask is u8, of 0 and 1.

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Elementwise, with NumPy's broadcasting; operands of one dtype, or a number, which i64 meets as
/// f64: beyond 2^53 neighbours are then equal.
Tensor operator==(const Tensor& a, const Tensor& b);
Tensor operator!=(const Tensor& a, const Tensor& b);
Tensor operator<(const Tensor& a, const Tensor& b);
Tensor operator<=(const Tensor& a, const Tensor& b);
Tensor operator>(const Tensor& a, const Tensor& b);
Tensor operator>=(const Tensor& a, const Tensor& b);
Tensor operator==(const Tensor& a, double b);
Tensor operator!=(const Tensor& a, double b);
Tensor operator<(const Tensor& a, double b);
Tensor operator<=(const Tensor& a, double b);
Tensor operator>(const Tensor& a, double b);
Tensor operator>=(const Tensor& a, double b);

Tensor operator&(const Tensor& a, const Tensor& b);  ///< of masks: both
Tensor operator|(const Tensor& a, const Tensor& b);  ///< of masks: either
Tensor operator~(const Tensor& mask);                ///< of a mask: not

/// Masks of the elements that are NaN, and of those that are neither NaN nor infinite.
Tensor isnan(const Tensor& x);
Tensor isfinite(const Tensor& x);
Tensor isinf(const Tensor& x);
/// Whether |a - b| <= absolute + relative |b| everywhere; infinite ones must be equal. False if
/// there is a NaN. On a GPU it waits.
bool allclose(const Tensor& a, const Tensor& b, double relative = 1e-5, double absolute = 1e-8);

/// a where the mask is not 0, elsewhere b; all three broadcast.
Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& mask, const Tensor& a, double b);
Tensor where(const Tensor& mask, double a, const Tensor& b);
Tensor where(const Tensor& mask, double a, double b);  ///< f32
/// `value` where the mask is not 0, elsewhere x.
Tensor masked_fill(const Tensor& x, const Tensor& mask, double value);

/// The larger (smaller) of two; of equals, both get half of the gradient.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// x, but no less than `low` and no more than `high`. The gradient is 0 there and beyond.
Tensor clamp(const Tensor& x, double low, double high);
Tensor clamp_min(const Tensor& x, double low);
Tensor clamp_max(const Tensor& x, double high);
Tensor leaky_relu(const Tensor& x, double slope = 0.01);  ///< x > 0 ? x : slope x

/// The lower (upper) triangle of the last two dimensions, from diagonal k on; elsewhere 0.
Tensor tril(const Tensor& x, std::int64_t k = 0);
Tensor triu(const Tensor& x, std::int64_t k = 0);

}  // namespace lockstep
