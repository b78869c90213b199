#pragma once
/// Times of our own products on an H100, from the table of docs/benchmarks.md.

#include <string>
#include <vector>

#include "lockstep/tools/predict/product.h"

namespace lockstep::predict {

struct Measured {
  Product product;
  double microseconds;
  std::string plan;  ///< that was measured, as Operation::name spells it
};

/// What was measured, as launches: then a second kernel added up all slices.
Operation operation_of(const Measured& measured);

/// The rows of "product | f32 | tf32 | bf16" in that document's text, row by row, without those
/// whose plan is not known. Throws Error if there are none.
std::vector<Measured> measured_products(const std::string& benchmarks);

/// Whether the host was measured: each launch took it about 5 us to enqueue, and it was waited for.
bool bound_by_host(const Measured& measured, const Operation& operation);

/// The middle one, or the mean of the two. There must be one.
double median(std::vector<double> values);

}  // namespace lockstep::predict
