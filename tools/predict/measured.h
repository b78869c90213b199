#pragma once
/// Times of our own products on an H100, from the table of docs/benchmarks.md.

#include <string>
#include <vector>

#include "lockstep/tools/predict/product.h"

namespace lockstep::predict {

struct Measured {
  Product product;
  double microseconds;
};

/// The rows of "product | f32 | tf32 | bf16" in that document's text, row by row. Throws
/// Error if there are none.
std::vector<Measured> measured_products(const std::string& benchmarks);

/// Whether the host was measured: each launch took it about 5 us to enqueue, and it was waited for.
bool bound_by_host(const Measured& measured, const Operation& operation);

/// The middle one, or the mean of the two. There must be one.
double median(std::vector<double> values);

}  // namespace lockstep::predict
