// The formulas of indexed_formulas.h on a GPU: a thread per element (or column).
//
// Counted (./lockstep count --write; docs/counters.md):
//   compare 65536: loads 4.00 (100 %), stores 1.00 (100 %), DRAM 1.00 of the fewest
//   copy_window 65536: loads 4.00 (100 %), stores 4.00 (100 %), DRAM 1.00 of the fewest
//   take 1024x64: loads 2.50 (100 %), stores 4.00 (100 %), DRAM 1.00 of the fewest
//   add_taken 1024x64: loads 3.00 (100 %), stores 4.00 (100 %), DRAM 1.33 of the fewest
//   cumulative_sum 256x256: loads 4.00 (100 %), stores 4.00 (100 %), DRAM 1.00 of the fewest
#include "lockstep/kernels/backend/indexed_over.h"
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels {
namespace {

using lockstep::cuda::launch;
using lockstep::cuda::queue_of;

constexpr int indexed_threads = 256;

/// formula(i) for i < n.
template <class Formula>
__global__ void __launch_bounds__(indexed_threads)
    indexed_kernel(std::int64_t n, const __grid_constant__ Formula formula) {
  const std::int64_t i = std::int64_t{blockIdx.x} * indexed_threads + threadIdx.x;
  if (i >= n) return;
  if constexpr (requires { formula.plan; })
    formula.plan.at(i, formula);
  else
    formula(i);
}

struct GpuLoop {
  static unsigned long long* fault(const Tensor& out) { return &queue_of(out).faults->bad_index; }
  template <class Formula>
  static void run(const Tensor& out, std::int64_t n, const Formula& formula) {
    if (n == 0) return;
    launch<indexed_kernel<Formula>>(
        {.grid = blocks_for(n, indexed_threads), .block = indexed_threads}, queue_of(out).stream, n,
        formula);
  }
};

}  // namespace

IndexedFunctions& CudaBackend::indexed() {
  static IndexedOver<GpuLoop> functions;
  return functions;
}

}  // namespace lockstep::kernels
