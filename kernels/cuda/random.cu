// Dropout on a GPU. The numbers are those of draws.h; here they are only dealt out.
//
// Counted (./lockstep count --write; docs/counters.md):
//   dropout 65536: loads 16.00 (100 %), stores 10.00 (100 %), DRAM 1.00 of the fewest
//   dropout_backward 65536: loads 10.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/map.cuh"
#include "lockstep/kernels/formulas/draws.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

using lockstep::cuda::launch;
using lockstep::cuda::queue_of;

constexpr int random_threads = 128;

/// x, out (n), mask (n) u8. Groups of 4 elements, two to a thread, in 16-byte loads: a block of
/// outputs decides over one.
template <class T>
__global__ void __launch_bounds__(random_threads)
    dropout_kernel(std::int64_t n, const T* x, T* out, std::uint8_t* mask, PhiloxState state,
                   float threshold, T scale) {
  constexpr int groups = 2;
  const bool aligned = is_aligned<4>(x) && is_aligned<4>(out) && is_aligned<4>(mask);
  const std::int64_t first = std::int64_t{blockIdx.x} * (groups * random_threads) + threadIdx.x;
  Pack<T, 4> values[groups];
#pragma unroll
  for (int g = 0; g < groups; ++g) {
    const std::int64_t i = (first + g * random_threads) * 4;
    if (aligned && i + 4 <= n) {
      values[g] = load_pack<4>(x + i);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (i + e < n) values[g][e] = x[i + e];
    }
  }
#pragma unroll
  for (int g = 0; g < groups; ++g) {
    const std::int64_t group = first + g * random_threads, i = group * 4;
    if (i >= n) break;
    const PhiloxBlock block = philox_block(state, group / philox_threads, group % philox_threads);
    Pack<std::uint8_t, 4> kept;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      kept[e] = keeps(block, e, threshold);
      values[g][e] *= kept[e] ? scale : T(0);
    }
    if (aligned && i + 4 <= n) {
      store_pack(out + i, values[g]);
      store_pack(mask + i, kept);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (i + e < n) out[i + e] = values[g][e], mask[i + e] = kept[e];
    }
  }
}

/// dx (n) (+)= dy (n) * mask (n) * scale. 16-byte loads.
template <class T, bool accumulate>
__global__ void __launch_bounds__(map_threads)
    dropout_backward_kernel(std::int64_t n, T* dx, const T* dy, const std::uint8_t* mask, T scale) {
  const auto gradient = [=](T d, std::uint8_t kept) { return d * (kept ? scale : T(0)); };
  if constexpr (accumulate)
    map_elements<2>(
        n, [=](T d, std::uint8_t kept, T before) { return before + gradient(d, kept); }, dx, dy,
        mask, static_cast<const T*>(dx));
  else
    map_elements<2>(n, gradient, dx, dy, mask);
}

}  // namespace

void CudaBackend::dropout(const PhiloxState& state, const Tensor& x, double p, const Tensor& out,
                          const Tensor& mask) {
  const std::int64_t n = x.numel();
  if (n == 0) return;
  visit_floating("dropout", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch<dropout_kernel<T>>({.grid = blocks_for(n, 8 * random_threads), .block = random_threads},
                              queue_of(x).stream, n, x.data<T>(), out.data<T>(),
                              mask.data<std::uint8_t>(), state, keep_below(p), keep_scale<T>(p));
  });
}

void CudaBackend::dropout_backward(const Tensor& dy, const Tensor& mask, double p, const Tensor& dx,
                                   bool accumulate) {
  const std::int64_t n = dy.numel();
  if (n == 0) return;
  visit_floating("dropout_backward", dy.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_flag(accumulate, [&](auto add) {
      launch<dropout_backward_kernel<T, add>>({.grid = map_blocks<2, T>(n), .block = map_threads},
                                              queue_of(dy).stream, n, dx.data<T>(), dy.data<T>(),
                                              mask.data<std::uint8_t>(), keep_scale<T>(p));
    });
  });
}

}  // namespace lockstep::kernels
