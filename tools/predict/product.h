#pragma once
/// The rungs of kernels/cuda/gemm/ as work: closed forms of a product's sizes, so that products are
/// predicted that a simulator could not run. test/counts compares them with what is counted.

#include <cstdint>
#include <string>

#include "lockstep/kernels/cuda/gemm/hopper/plan.h"
#include "lockstep/tools/predict/gpu.h"
#include "lockstep/tools/predict/work.h"

namespace lockstep::predict {

enum class Precision { f32, tf32, bf16 };

/// c (m, n) = op(a) op(b), of matrices that are aligned to 16 bytes.
struct Product {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  Precision precision = Precision::f32;
  int result_bytes = 4;  ///< of an element of c: 2 for a bf16 result of bf16 factors

  int bytes() const { return precision == Precision::bf16 ? 2 : 4; }
};

/// What the library runs for it (kernels/cuda/gemm/ladder.cpp), as launches on `gpu`.
Operation chosen_product(const Product& product, const Gpu& gpu);

/// A rung of the ladder, 1 to 12, with the plan that it makes by itself. Throws UsageError where it
/// has another precision.
Operation product_on_rung(int rung, const Product& product, const Gpu& gpu);

/// Rungs 11 and 12 with a given plan, and rungs 8 to 10.
Operation product_by(const kernels::cuda::HopperPlan& plan, const Product& product, const Gpu& gpu);
Operation product_by(const kernels::cuda::Plan& plan, const Product& product, const Gpu& gpu);

/// With a plan that is spelled as Operation::name spells it: "8 32x32 /4". Rungs 8 to 12; throws
/// UsageError for another name.
Operation product_named(const std::string& plan, const Product& product, const Gpu& gpu);

/// The bytes of factors that a wave of blocks after the other reads from memory. Those of a wave
/// share them in L2; the next one finds them there only if both matrices fit into half of it.
struct Tiles {
  std::int64_t m, n, k;
  int rows, columns, bytes;
  int band = 1;  ///< rows of tiles that are gone through together, column by column
};
double bytes_read(const Tiles& tiles, double at_once, const Gpu& gpu);

}  // namespace lockstep::predict
