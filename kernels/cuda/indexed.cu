// The formulas of indexed_formulas.h on a GPU: a thread per element (or column).
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/formulas/indexed_formulas.h"

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
  const Tensor& out;
  unsigned long long* fault() const { return &queue_of(out).faults->bad_index; }
  template <class Formula>
  void operator()(std::int64_t n, const Formula& formula) const {
    if (n == 0) return;
    launch<indexed_kernel<Formula>>(
        {.grid = blocks_for(n, indexed_threads), .block = indexed_threads}, queue_of(out).stream, n,
        formula);
  }
};

IndexedKernels<GpuLoop> on(const Tensor& out) { return IndexedKernels<GpuLoop>{GpuLoop{out}}; }

}  // namespace

void CudaBackend::compare(Compare op, const Tensor& a, const Tensor& b, const Tensor& out) {
  on(out).compare(op, a, b, out);
}
void CudaBackend::combine_integers(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  on(out).combine(op, a, b, out);
}
void CudaBackend::convert(const Tensor& x, const Tensor& out) { on(out).convert(x, out); }
void CudaBackend::masked_copy(const Tensor& mask, const Tensor& x, const Tensor& out) {
  on(out).masked_copy(mask, x, out);
}
void CudaBackend::copy_window(const Shape& shape, const Tensor& x, const Window& from,
                              const Tensor& out, const Window& to, bool accumulate) {
  on(out).copy_window(shape, x, from, out, to, accumulate);
}
void CudaBackend::take(const Taken& what, const Tensor& x, const Tensor& index, const Tensor& out) {
  on(out).take(what, x, index, out);
}
void CudaBackend::add_taken(const Taken& what, const Tensor& dy, const Tensor& index,
                            const Tensor& dx) {
  on(dx).add_taken(what, dy, index, dx);
}
void CudaBackend::cumulative_sum(std::int64_t outer, std::int64_t n, std::int64_t inner,
                                 bool reverse, const Tensor& x, const Tensor& out) {
  on(out).cumulative_sum(outer, n, inner, reverse, x, out);
}

}  // namespace lockstep::kernels
