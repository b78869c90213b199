#pragma once
/// Which plan would be the fastest, if the prediction were right.

#include "lockstep/tools/predict/product.h"

namespace lockstep::predict {

/// Of all tiles, and all numbers of slices that have room, of the rungs that the library chooses
/// from: the one that is predicted to take the least.
Operation fastest_product(const Product& product, const Gpu& gpu);

}  // namespace lockstep::predict
