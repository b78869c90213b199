#pragma once
/// A tensor as text, as PyTorch's print shows it:
///
///   tensor([[ 1.0000, -2.5000],
///           [ 0.0000,     nan]], dtype=f64)
///
/// Four digits behind the point; `1.` where all numbers are whole; 1.0000e+05 where the largest
/// magnitude is beyond 1e8, or beyond 1000 times the smallest, or the smallest is below 1e-4. Of
/// more than 1000 elements it shows the first and last three of each dimension. It names the dtype
/// but for f32 and i64, and the device but for the cpu, and the shape of a tensor without elements.
/// An undefined one is `tensor(undefined)`. Elements on a GPU are copied; it waits for them.
///
///   fmt::print("{}\n", x);   std::cout << x;   to_string(x)

#include <string>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// As above.
std::string to_string(const Tensor& tensor);

}  // namespace lockstep

template <>
struct fmt::formatter<lockstep::Tensor> : lockstep::TextFormatter {};
