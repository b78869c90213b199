#include "lockstep/kernels/cpu/backend.h"
#include "lockstep/kernels/formulas/indexed_formulas.h"

namespace lockstep::kernels {
namespace {

struct CpuLoop {
  static unsigned long long* fault() { return nullptr; }
  template <class Formula>
  void operator()(std::int64_t n, const Formula& formula) const {
    for (std::int64_t i = 0; i < n; ++i) formula(i);
  }
};

const IndexedKernels<CpuLoop> indexed{CpuLoop{}};

}  // namespace

void CpuBackend::compare(Compare op, const Tensor& a, const Tensor& b, const Tensor& out) {
  indexed.compare(op, a, b, out);
}
void CpuBackend::combine_integers(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) {
  indexed.combine(op, a, b, out);
}
void CpuBackend::convert(const Tensor& x, const Tensor& out) { indexed.convert(x, out); }
void CpuBackend::masked_copy(const Tensor& mask, const Tensor& x, const Tensor& out) {
  indexed.masked_copy(mask, x, out);
}
void CpuBackend::copy_window(const Shape& shape, const Tensor& x, const Window& from,
                             const Tensor& out, const Window& to, bool accumulate) {
  indexed.copy_window(shape, x, from, out, to, accumulate);
}
void CpuBackend::take(const Taken& what, const Tensor& x, const Tensor& index, const Tensor& out) {
  indexed.take(what, x, index, out);
}
void CpuBackend::add_taken(const Taken& what, const Tensor& dy, const Tensor& index,
                           const Tensor& dx) {
  indexed.add_taken(what, dy, index, dx);
}
void CpuBackend::cumulative_sum(std::int64_t outer, std::int64_t n, std::int64_t inner,
                                bool reverse, const Tensor& x, const Tensor& out) {
  indexed.cumulative_sum(outer, n, inner, reverse, x, out);
}

}  // namespace lockstep::kernels
