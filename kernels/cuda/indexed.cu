// The formulas of indexed_formulas.h on a GPU: a thread per element (or column). Rows that were
// taken are added by a kernel of its own.
//
// Counted (./lockstep count --write; docs/counters.md):
//   compare 65536: loads 4.00 (100 %), stores 1.00 (100 %), DRAM 1.00 of the fewest
//   copy_window 65536: loads 4.00 (100 %), stores 4.00 (100 %), DRAM 1.00 of the fewest
//   take 1024x64: loads 2.50 (100 %), stores 4.00 (100 %), DRAM 1.00 of the fewest
//   add_taken 1024x64: loads 7.56 (100 %), stores 4.00 (100 %), DRAM 1.00 of the fewest
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

constexpr int strip_accesses = 8, strip = strip_accesses * warp_size;

/// dx (outer, n, inner) (+)= the rows of dy (outer, count, inner) that were taken from it. A warp
/// has a strip of a row of dx, and looks for that row among all indices, 32 at a time: the terms of
/// an element are added in their order, and no element is written by two.
template <class T>
__global__ void __launch_bounds__(indexed_threads)
    add_taken_rows_kernel(const Indices indices, const T* dy, T* dx, bool accumulate) {
  const Taken& t = indices.what;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const std::int64_t strips = (t.inner + strip - 1) / strip;
  const std::int64_t warp =
      std::int64_t{blockIdx.x} * (indexed_threads / warp_size) + threadIdx.x / warp_size;
  const std::int64_t row = warp / strips, first = (warp - row * strips) * strip + lane;
  if (row >= t.outer * t.n) return;
  const std::int64_t o = row / t.n;
  // f(access, element of a row) for those that this lane has.
  const auto for_each = [&](auto f) {
#pragma unroll
    for (int a = 0; a < strip_accesses; ++a)
      if (first + a * warp_size < t.inner) f(a, first + a * warp_size);
  };
  T sums[strip_accesses] = {};
  bool begun = !accumulate;
  for (std::int64_t k0 = 0; k0 < t.count; k0 += warp_size) {
    const bool exists = k0 + lane < t.count;
    const bool here = exists && indices.at(o, k0 + lane, 0) == row - o * t.n;
    for (unsigned found = __ballot_sync(all_lanes, here); found != 0; found &= found - 1) {
      if (!begun) for_each([&](int a, std::int64_t j) { sums[a] = dx[row * t.inner + j]; });
      begun = true;
      const T* const terms = dy + (o * t.count + k0 + __ffs(static_cast<int>(found)) - 1) * t.inner;
      for_each([&](int a, std::int64_t j) { sums[a] += terms[j]; });
    }
  }
  if (begun) for_each([&](int a, std::int64_t j) { dx[row * t.inner + j] = sums[a]; });
}

class GpuIndexed final : public IndexedOver<GpuLoop> {
 public:
  void add_taken(const Taken& what, const Tensor& dy, const Tensor& index, const Tensor& dx,
                 bool accumulate) override {
    if (what.each) return IndexedOver::add_taken(what, dy, index, dx, accumulate);
    const std::int64_t warps = what.outer * what.n * divide_up(what.inner, strip);
    const Indices indices{what, index.data<std::int64_t>(), GpuLoop::fault(dx)};
    visit_floating("add_taken", dy.dtype(), [&](auto zero) {
      using T = decltype(zero);
      launch<add_taken_rows_kernel<T>>(
          {.grid = blocks_for(warps, indexed_threads / warp_size), .block = indexed_threads},
          queue_of(dx).stream, indices, dy.data<T>(), dx.data<T>(), accumulate);
    });
  }
};

}  // namespace

IndexedFunctions& CudaBackend::indexed() {
  static GpuIndexed functions;
  return functions;
}

}  // namespace lockstep::kernels
