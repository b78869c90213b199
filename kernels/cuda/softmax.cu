// Softmax and log-softmax on a GPU, with one reading and one writing of each row (rows.cuh).
//
// Counted (./lockstep count --write; docs/counters.md):
//   softmax 128x10: loads 3.00 (100 %), stores 3.00 (100 %), DRAM 1.00 of the fewest
//   softmax 64x1024: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 1.00 (1.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   softmax 4x16384: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 1.00 (1.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   softmax 2x32768: 3 launches, DRAM 1.50 of the fewest
//     reduce_chunks_kernel: loads 16.00 (100 %), stores 1.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 1.00 (1.00)
//     reduce_short_rows_kernel: loads 1.00 (100 %), stores 1.00 (100 %)
//     map_long_rows_kernel: loads 14.33 (100 %), stores 16.00 (100 %)
//   log_softmax_backward 128x10: loads 3.00 (100 %), stores 3.00 (100 %), DRAM 1.00 of the fewest
//   log_softmax_backward 64x1024: loads 16.00 (100 %), stores 16.00 (100 %),
//     shared loads 1.00 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   log_softmax_backward 4x16384: loads 16.00 (100 %), stores 16.00 (100 %),
//     shared loads 1.00 (1.00), shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   log_softmax_backward 2x32768: 3 launches, DRAM 1.33 of the fewest
//     reduce_chunks_kernel: loads 16.00 (100 %), stores 1.00 (100 %), shared loads 1.00 (1.00),
//       shared stores 1.00 (1.00)
//     reduce_short_rows_kernel: loads 1.00 (100 %), stores 1.00 (100 %)
//     map_long_rows_kernel: loads 15.55 (100 %), stores 16.00 (100 %)
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/rows.cuh"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/formulas/with_flag.h"
#include "lockstep/kernels/indexed.h"
#include "lockstep/kernels/loss.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::kernels {
namespace {

using lockstep::cuda::launch;
using lockstep::cuda::queue_of;

/// A row's elements of log-softmax, or of softmax, from its ExpSum.
template <class T, bool logarithm>
struct Normalize {
  T largest;
  T scale;  ///< logarithm: the total's, which is subtracted; else 1 / total

  __device__ Normalize(T largest_, T total)
      : largest(largest_), scale(logarithm ? log_of(total) : 1 / total) {}
  __device__ T of(T x) const {
    return logarithm ? x - largest - scale : exp_of(x - largest) * scale;
  }
};

/// x (rows, columns) -> out, a team of `lanes` threads per row. 16-byte loads.
template <class T, int width, int accesses, bool logarithm>
__global__ void __launch_bounds__(largest_team<T>, 1)
    softmax_kernel(const T* x, T* out, bool aligned, std::int64_t rows, int columns, int lanes) {
  __shared__ T shared[warp_size];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = blockIdx.x * std::int64_t{blockDim.x / lanes} + thread / lanes;
  RowShare<T, width, accesses> share(thread % lanes, lanes, row < rows ? columns : 0);
  share.load(x + row * columns, aligned);
  const T largest = share.max(shared);
  const T total = share.sum(shared, [&](T& element, int) {
    const T term = exp_of(element - largest);
    if (!logarithm) element = term;  // so that it is computed once
    return term;
  });
  const Normalize<T, logarithm> normalize(largest, total);
  share.for_each([&](T& element, int) {
    element = logarithm ? normalize.of(element) : element * normalize.scale;
  });
  share.store(out + row * columns, aligned);
}

/// For map_long_rows.
template <class T, bool logarithm>
struct NormalizeRows {
  const T* x;
  bool aligned;
  const ExpSum<T>* sums;

  __device__ Normalize<T, logarithm> row(std::int64_t row) const {
    return {sums[row].largest, sums[row].total};
  }
  template <int width>
  __device__ Pack<T, width> pack(const Normalize<T, logarithm>& normalize, std::int64_t at) const {
    Pack<T, width> pack = load_pack<width>(x + at, aligned);
#pragma unroll
    for (int i = 0; i < width; ++i) pack[i] = normalize.of(pack[i]);
    return pack;
  }
};

template <class T, bool logarithm>
void softmax_of(const Tensor& x, const Tensor& out) {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const T* from = x.data<T>();
  T* to = out.data<T>();
  const bool in_registers =
      with_rows_in_registers<T>(columns, [&](auto width, auto accesses, const RowTeams& teams) {
        launch<softmax_kernel<T, width, accesses, logarithm>>(
            {.grid = blocks_for(rows, teams.per_block()), .block = teams.threads},
            queue_of(x).stream, from, to, is_aligned<width>(from) && is_aligned<width>(to), rows,
            static_cast<int>(columns), teams.lanes);
      });
  if (in_registers) return;
  with_width<T>(packs_fit<T>(columns), [&](auto width) {
    Tensor storage;
    const ExpSum<T>* sums = exp_sums<T, width>(x, storage);
    map_long_rows<T, width>(x.device(), rows, columns, to,
                            NormalizeRows<T, logarithm>{from, is_aligned<width>(from), sums});
  });
}

/// dx (rows, columns) (+)= dy - exp(y) * the row's sum of dy, a team of `lanes` threads per row.
/// 16-byte loads.
template <class T, int width, int accesses, bool accumulate>
__global__ void __launch_bounds__(largest_team<T>, 1)
    log_softmax_backward_kernel(const T* dy, const T* y, T* dx, bool aligned, std::int64_t rows,
                                int columns, int lanes) {
  __shared__ T shared[warp_size];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t row = blockIdx.x * std::int64_t{blockDim.x / lanes} + thread / lanes;
  RowShare<T, width, accesses> share(thread % lanes, lanes, row < rows ? columns : 0);
  share.load(dy + row * columns, aligned);
  const T total = share.sum(shared, [](T& d, int) { return d; });
#pragma unroll
  for (int p = 0; p < accesses; ++p) {
    if (share.column(p) >= share.columns) continue;
    const std::int64_t at = row * columns + share.column(p);
    const Pack<T, width> outputs = load_pack<width>(y + at, aligned);
    Pack<T, width> pack = share.packs[p];
#pragma unroll
    for (int i = 0; i < width; ++i) pack[i] -= exp_of(outputs[i]) * total;
    if constexpr (accumulate) {
      const Pack<T, width> before = load_pack<width>(dx + at, aligned);
#pragma unroll
      for (int i = 0; i < width; ++i) pack[i] += before[i];
    }
    store_pack(dx + at, pack, aligned);
  }
}

/// The same for map_long_rows.
template <class T, bool accumulate>
struct GradientRows {
  const T *dy, *y, *dx;
  bool aligned;
  const T* sums;  ///< of dy, by row

  __device__ T row(std::int64_t row) const { return sums[row]; }
  template <int width>
  __device__ Pack<T, width> pack(T total, std::int64_t at) const {
    Pack<T, width> pack = load_pack<width>(dy + at, aligned);
    const Pack<T, width> outputs = load_pack<width>(y + at, aligned);
#pragma unroll
    for (int i = 0; i < width; ++i) pack[i] -= exp_of(outputs[i]) * total;
    if constexpr (accumulate) {
      const Pack<T, width> before = load_pack<width>(dx + at, aligned);
#pragma unroll
      for (int i = 0; i < width; ++i) pack[i] += before[i];
    }
    return pack;
  }
};

template <class T, bool accumulate>
void log_softmax_backward_of(const Tensor& dy_tensor, const Tensor& y_tensor,
                             const Tensor& dx_tensor) {
  const Device device = dy_tensor.device();
  const std::int64_t rows = dy_tensor.size(0), columns = dy_tensor.size(1);
  const T *dy = dy_tensor.data<T>(), *y = y_tensor.data<T>();
  T* dx = dx_tensor.data<T>();
  const auto aligned = [&](auto width) {
    return is_aligned<width>(dy) && is_aligned<width>(y) && is_aligned<width>(dx);
  };
  const bool in_registers =
      with_rows_in_registers<T>(columns, [&](auto width, auto accesses, const RowTeams& teams) {
        launch<log_softmax_backward_kernel<T, width, accesses, accumulate>>(
            {.grid = blocks_for(rows, teams.per_block()), .block = teams.threads},
            queue_of(device).stream, dy, y, dx, aligned(width), rows, static_cast<int>(columns),
            teams.lanes);
      });
  if (in_registers) return;
  const Tensor sums = Tensor::empty({rows}, dtype_of<T>(), device);
  sum_of_rows(device, dy, rows, columns, Put<T>{sums.data<T>()});
  with_width<T>(packs_fit<T>(columns), [&](auto width) {
    map_long_rows<T, width>(device, rows, columns, dx,
                            GradientRows<T, accumulate>{dy, y, dx, aligned(width), sums.data<T>()});
  });
}

}  // namespace

void CudaBackend::softmax(const Tensor& x, const Tensor& out) {
  if (x.numel() == 0) return;
  visit_floating("softmax", x.dtype(),
                 [&](auto zero) { softmax_of<decltype(zero), false>(x, out); });
}

void CudaBackend::log_softmax(const Tensor& x, const Tensor& out) {
  if (x.numel() == 0) return;
  visit_floating("log_softmax", x.dtype(),
                 [&](auto zero) { softmax_of<decltype(zero), true>(x, out); });
}

/// x - log_softmax(x) at the largest element of a row, which is that itself if it is infinite.
void CudaBackend::logsumexp(const Tensor& x, const Tensor& out) {
  const std::int64_t rows = x.size(0), columns = x.size(1);
  const auto like_out = [&](DType dtype) { return Tensor::empty({rows}, dtype, x.device()); };
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor at = like_out(DType::i64), infinite = like_out(DType::u8);
  const Tensor x_at = like_out(x.dtype()), y_at = like_out(x.dtype());
  const Tensor infinity = Tensor::empty({}, x.dtype(), x.device());
  const Taken largest{.outer = rows, .n = columns, .each = true, .operation = "logsumexp"};
  kernels::log_softmax(x, y);
  kernels::argmax(x, at);
  kernels::take(largest, x, at, x_at);
  kernels::take(largest, y, at, y_at);
  kernels::binary(Binary::sub, x_at, y_at, out);
  kernels::unary(Unary::abs, x_at, y_at);
  infinity.fill(std::numeric_limits<double>::infinity());
  kernels::compare(Compare::eq, y_at, infinity, infinite);
  kernels::masked_copy(infinite, x_at, out);
}

void CudaBackend::log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx,
                                       bool accumulate) {
  if (dy.numel() == 0) return;
  visit_floating("log_softmax_backward", dy.dtype(), [&](auto zero) {
    with_flag(accumulate,
              [&](auto add) { log_softmax_backward_of<decltype(zero), add>(dy, y, dx); });
  });
}

}  // namespace lockstep::kernels
