// Elementwise kernels on a GPU: the formulas of functors.h, in the loops of map.cuh.
//
// Counted (./lockstep count --write; docs/counters.md):
//   relu 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   gelu 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   relu_backward 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   add 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   add_row 256x256: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   add_column 256x256: loads 8.50 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   scale_accumulate 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/map.cuh"
#include "lockstep/kernels/formulas/functors.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

using lockstep::cuda::launch;
using lockstep::cuda::queue_of;

/// out (n) = F(x) (n). 16-byte loads.
template <class T, class F>
__global__ void __launch_bounds__(map_threads) unary_kernel(std::int64_t n, T* out, const T* x) {
  map_elements<4>(
      n, [](T value) { return F::forward(value); }, out, x);
}

/// dx (n) (+)= F's derivative (n) * dy (n). 16-byte loads.
template <class T, class F>
__global__ void __launch_bounds__(map_threads)
    unary_backward_kernel(std::int64_t n, T* dx, const T* dy, const T* saved, bool accumulate) {
  map_elements<2>(
      n,
      [=](T d, T s, T before) {
        const T gradient = F::backward(d, s);
        return accumulate ? before + gradient : gradient;
      },
      dx, dy, saved, Before<T>{accumulate ? dx : nullptr});
}

/// out (n) (+)= a F b, where an operand is an array of n elements or Repeated. 16-byte loads.
template <class T, class F, class Operand>
__global__ void __launch_bounds__(map_threads)
    binary_kernel(std::int64_t n, T* out, const __grid_constant__ Operand a,
                  const __grid_constant__ Operand b, bool accumulate) {
  map_elements<2>(
      n,
      [=](T x, T y, T before) {
        const T result = F{}(x, y);
        return accumulate ? before + result : result;
      },
      out, a, b, Before<T>{accumulate ? out : nullptr});
}

/// out (n) (+)= alpha * x, where x is an array of n elements or Repeated. 16-byte loads.
template <class T, bool accumulate, class Operand>
__global__ void __launch_bounds__(map_threads)
    scale_kernel(std::int64_t n, T* out, T alpha, const __grid_constant__ Operand x) {
  if constexpr (accumulate)
    map_elements<2>(
        n, [=](T value, T before) { return before + alpha * value; }, out, x,
        static_cast<const T*>(out));
  else
    map_elements<4>(
        n, [=](T value) { return alpha * value; }, out, x);
}

}  // namespace

void CudaBackend::unary(Unary op, const Tensor& x, const Tensor& out) {
  const std::int64_t n = x.numel();
  if (n == 0) return;
  const auto queue = queue_of(x);
  visit_floating("unary", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    visit(op, [&](auto functor) {
      launch<unary_kernel<T, decltype(functor)>>(
          {.grid = map_blocks<4, T>(n), .block = map_threads}, queue.stream, n, out.data<T>(),
          x.data<T>());
    });
  });
}

void CudaBackend::unary_backward(Unary op, const Tensor& dy, const Tensor& saved, const Tensor& dx,
                                 bool accumulate) {
  const std::int64_t n = dy.numel();
  if (n == 0) return;
  const auto queue = queue_of(dy);
  visit_floating("unary_backward", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    visit(op, [&](auto functor) {
      launch<unary_backward_kernel<T, decltype(functor)>>(
          {.grid = map_blocks<2, T>(n), .block = map_threads}, queue.stream, n, dx.data<T>(),
          dy.data<T>(), saved.data<T>(), accumulate);
    });
  });
}

void CudaBackend::binary(Binary op, const Tensor& a, const Tensor& b, const Tensor& out,
                         bool accumulate) {
  const std::int64_t n = out.numel();
  if (n == 0) return;
  const auto queue = queue_of(out);
  const StridePlan plan = broadcast_plan(a.shape(), b.shape(), out.shape());
  visit_floating("binary", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    visit(op, [&](auto functor) {
      const auto run = [&]<class Operand>(const Operand& left, const Operand& right) {
        launch<binary_kernel<T, decltype(functor), Operand>>(
            {.grid = map_blocks<2, T>(n), .block = map_threads}, queue.stream, n, out.data<T>(),
            left, right, accumulate);
      };
      if (a.numel() == n && b.numel() == n)
        run.template operator()<const T*>(a.data<T>(), b.data<T>());
      else
        run(Repeated<T>(a, plan, plan.stride_a, n), Repeated<T>(b, plan, plan.stride_b, n));
    });
  });
}

void CudaBackend::broadcast_to(const Tensor& x, const Tensor& out, bool accumulate, double alpha) {
  const std::int64_t n = out.numel();
  if (n == 0) return;
  const auto queue = queue_of(out);
  const StridePlan plan = broadcast_plan(x.shape(), Shape{}, out.shape());
  visit_floating("broadcast_to", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_flag(accumulate, [&](auto add) {
      constexpr int packs = add ? 2 : 4;
      const auto run = [&]<class Operand>(const Operand& operand) {
        launch<scale_kernel<T, add, Operand>>(
            {.grid = map_blocks<packs, T>(n), .block = map_threads}, queue.stream, n, out.data<T>(),
            static_cast<T>(alpha), operand);
      };
      if (x.numel() == n)
        run.template operator()<const T*>(x.data<T>());
      else
        run(Repeated<T>(x, plan, plan.stride_a, n));
    });
  });
}

}  // namespace lockstep::kernels
