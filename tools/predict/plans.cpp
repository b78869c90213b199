#include "lockstep/tools/predict/plans.h"

#include "lockstep/tools/predict/predict.h"

namespace lockstep::predict {

using kernels::cuda::HopperPlan;
using kernels::cuda::HopperTile;
using kernels::cuda::Plan;

Operation fastest_product(const Product& product, const Gpu& gpu) {
  Operation best = chosen_product(product, gpu);
  double least = predict(best, gpu).seconds;
  const auto attempt = [&](Operation operation) {
    const double seconds = predict(operation, gpu).seconds;
    if (seconds >= least) return;
    least = seconds;
    best = std::move(operation);
  };
  const bool f32 = product.precision == Precision::f32;
  for (const int slices : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    if (slices * product.m * product.n > kernels::cuda::most_slice_sums) break;
    for (int tile = 0; tile < (f32 ? 3 : 2); ++tile)
      attempt(product_by(Plan{tile, slices}, product, gpu));
    if (f32 || gpu.wgmma == 0) continue;
    for (const HopperTile tile :
         {HopperTile::wide, HopperTile::square, HopperTile::flat, HopperTile::small})
      attempt(product_by(HopperPlan{tile, slices}, product, gpu));
  }
  return best;
}

}  // namespace lockstep::predict
