// Random fills and dropout on a GPU. The numbers are those of draws.h; here they are only dealt
// out.
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/map.cuh"
#include "lockstep/kernels/formulas/draws.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

using lockstep::cuda::launch;
using lockstep::cuda::queue_of;

constexpr int random_threads = 128;

/// The numbers that a block of outputs makes, one per element philox_threads apart.
template <class T>
struct UniformNumbers {
  T low, high;
  __device__ void operator()(const PhiloxBlock& block, T (&out)[per_block<T>]) const {
#pragma unroll
    for (int k = 0; k < per_block<T>; ++k) out[k] = uniform_between(block, k, low, high);
  }
};

__device__ __forceinline__ void sine_and_cosine(float angle, float* sine, float* cosine) {
  __sincosf(angle, sine, cosine);  // the fast approximation: it is what cuRAND takes
}
__device__ __forceinline__ void sine_and_cosine(double angle, double* sine, double* cosine) {
  sincos(angle, sine, cosine);
}

template <class T>
struct NormalNumbers {
  T mean, stddev;
  __device__ void operator()(const PhiloxBlock& block, T (&out)[per_block<T>]) const {
    using std::fma;
#pragma unroll
    for (int k = 0; k < per_block<T> / 2; ++k) {
      const Polar<T> polar = box_muller<T>(block, k);
      T sine, cosine;
      sine_and_cosine(polar.angle, &sine, &cosine);
      out[2 * k] = fma(polar.radius * sine, stddev, mean);
      out[2 * k + 1] = fma(polar.radius * cosine, stddev, mean);
    }
  }
};

/// out (n) = numbers of `state`, in 16-byte stores: a thread takes as many neighbouring
/// subsequences as make a pack, each of which gives one element to as many packs.
template <class T, class Numbers>
__global__ void __launch_bounds__(random_threads)
    fill_random_kernel(std::int64_t n, T* out, PhiloxState state, Numbers numbers) {
  constexpr int width = per_block<T>;
  const std::int64_t thread = std::int64_t{blockIdx.x} * random_threads + threadIdx.x;
  const std::int64_t round = thread / (philox_threads / width);
  const std::int64_t subsequence = thread % (philox_threads / width) * width;
  const std::int64_t first = round * width * philox_threads + subsequence;
  T drawn[width][width];  // (subsequence, pack)
#pragma unroll
  for (int s = 0; s < width; ++s) numbers(philox_block(state, round, subsequence + s), drawn[s]);
  const bool aligned = is_aligned(out);
#pragma unroll
  for (int p = 0; p < width; ++p) {
    const std::int64_t i = first + p * philox_threads;
    Pack<T> pack;
#pragma unroll
    for (int s = 0; s < width; ++s) pack[s] = drawn[s][p];
    if (aligned && i + width <= n) {
      store_pack(out + i, pack);
    } else {
#pragma unroll
      for (int s = 0; s < width; ++s)
        if (i + s < n) out[i + s] = pack[s];
    }
  }
}

template <class T, class Numbers>
void fill_random(const PhiloxState& state, const Tensor& out, Numbers numbers) {
  const std::int64_t n = out.numel();
  if (n == 0) return;
  // Threads of the last round are needed as far as its first packs reach.
  constexpr std::int64_t per_round = per_block<T> * philox_threads;
  constexpr std::int64_t threads_per_round = philox_threads / per_block<T>;
  const std::int64_t last = std::min(philox_threads, n % per_round);
  const std::int64_t threads = n / per_round * threads_per_round + divide_up(last, per_block<T>);
  launch<fill_random_kernel<T, Numbers>>(
      {.grid = blocks_for(threads, random_threads), .block = random_threads}, queue_of(out).stream,
      n, out.data<T>(), state, numbers);
}

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

void CudaBackend::uniform(const PhiloxState& state, const Tensor& out, double low, double high) {
  visit_floating("uniform", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    fill_random<T>(state, out, UniformNumbers<T>{static_cast<T>(low), static_cast<T>(high)});
  });
}

void CudaBackend::normal(const PhiloxState& state, const Tensor& out, double mean, double stddev) {
  visit_floating("normal", out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    fill_random<T>(state, out, NormalNumbers<T>{static_cast<T>(mean), static_cast<T>(stddev)});
  });
}

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
