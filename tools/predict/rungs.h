#pragma once
/// What a block of each rung does. Instructions are those of the main loops that nvcc 13 makes for
/// sm_90a, registers those of docs/kernels.md; accesses follow from each rung's source, as counted
/// (docs/counters.md), with two exceptions: nvcc joins neighbouring reads of shared memory into one
/// of 16 bytes, and such a read takes two passes, not four, where warp_lanes.cuh says so.

#include "lockstep/kernels/cuda/gemm/hopper/plan.h"
#include "lockstep/tools/predict/product.h"

namespace lockstep::predict {

/// A block computes `rows` x `columns` results, `depth` of K per step.
struct Tiling {
  int rows, columns, depth;
  int warps, registers, shared_bytes;
};

/// Of rungs 1 to 10. `tile`: the row of the rung's table in slice_plan.h; else 0.
const Tiling& tiling_of(int rung, int tile);

/// A block of rungs 1 to 10: without blocks, steps and bytes of memory, which the product's sizes
/// decide.
Work tiled_work(int rung, const Tiling& tiling, const Product& product, int result_bytes);

/// The same of rungs 11 and 12. A step is 128 bytes of k.
Work hopper_work(const kernels::cuda::HopperShape& shape, int result_bytes);

}  // namespace lockstep::predict
