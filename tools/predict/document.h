#pragma once
/// docs/predictions.md.

#include <string>
#include <vector>

#include "lockstep/tools/predict/predict.h"
#include "lockstep/tools/predict/product.h"

namespace lockstep::predict {

/// Products of a layer of width x width: forward, the gradient of the weights, that of the input;
/// for batches of 128, 1024 and 8192 and widths from 256 to 8192.
struct LayerProduct {
  std::string_view what;  ///< "forward", "dW", "dX"
  std::int64_t batch, width;
  bool transpose_a, transpose_b;

  Product in(Precision precision) const;
};
std::vector<LayerProduct> layer_products();

std::string_view name_of(Precision precision);

/// One reading and two of the same rows, as the counters have them (tools/counts/predicted.h).
struct Readings {
  Prediction one, two;
};

/// `benchmarks`: the text of docs/benchmarks.md.
std::string document(const Readings& softmax, const std::string& benchmarks);

}  // namespace lockstep::predict
