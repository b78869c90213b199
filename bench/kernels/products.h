#pragma once
/// What all rows of matrix products share.

#include "lockstep/bench/kernels/peers.h"

namespace bench {

/// Random factors.
Product product_of(const Size& size, Source& source, DType dtype, bool tf32);

/// The case in which `run` computes the product. A third input is a bias.
Case product_case(const Product& product, Run run);

}  // namespace bench
