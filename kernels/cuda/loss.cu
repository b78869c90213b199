// Losses on a GPU. Terms are added in f64.
//
// Counted (./lockstep count --write; docs/counters.md):
//   cross_entropy 128x10: loads 2.00 (100 %), stores 2.97 (100 %), shared loads 2.00 (2.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   cross_entropy 64x1024: 2 launches, DRAM 1.00 of the fewest
//     cross_entropy_kernel: loads 13.00 (100 %), stores 14.33 (100 %), shared loads 1.33 (1.33),
//       shared stores 1.00 (1.00)
//     reduce_chunks_kernel: loads 8.00 (100 %), stores 1.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 1.00 (1.00)
//   cross_entropy 4x16384: 2 launches, DRAM 1.00 of the fewest
//     cross_entropy_kernel: loads 13.00 (100 %), stores 15.88 (100 %), shared loads 1.33 (1.33),
//       shared stores 1.00 (1.00)
//     reduce_chunks_kernel: loads 1.00 (100 %), stores 1.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 1.00 (1.00)
//   cross_entropy 2x32768: 4 launches, DRAM 1.50 of the fewest
//     reduce_chunks_kernel: loads 16.00 (100 %), stores 1.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 1.00 (1.00)
//     reduce_short_rows_kernel: loads 1.00 (100 %), stores 1.00 (100 %)
//     reduce_chunks_kernel: loads 1.25 (80 %), stores 1.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 1.00 (1.00)
//     map_long_rows_kernel: loads 13.63 (100 %), stores 16.00 (100 %)
//   cross_entropy_backward 64x1024: loads 13.00 (100 %), stores 16.00 (100 %),
//     DRAM 1.00 of the fewest
//   mse 64x1024: 2 launches, DRAM 1.00 of the fewest
//     reduce_chunks_kernel: loads 16.00 (100 %), stores 1.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 1.00 (1.00)
//     reduce_chunks_kernel: loads 1.00 (100 %), stores 1.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 1.00 (1.00)
//   mse_backward 64x1024: loads 13.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
#include "lockstep/kernels/clip.h"
#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/map.cuh"
#include "lockstep/kernels/cuda/rows.cuh"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/formulas/with_flag.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep::kernels {
namespace {

using lockstep::cuda::Faults;
using lockstep::cuda::launch;
using lockstep::cuda::queue_of;

/// 1 / n; the mean of nothing is 0.
double reciprocal(std::int64_t n) { return n > 0 ? 1 / static_cast<double>(n) : 0; }

/// What a gradient of terms is multiplied by: factor * dloss.
template <class T>
__host__ __device__ T gradient_factor(double factor, T dloss) {
  return static_cast<T>(factor * static_cast<double>(dloss));
}

// Cross-entropy.

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// labels[row], if it is one of the columns; else complains, and returns -1.
__device__ __forceinline__ std::int64_t checked_label(const std::int64_t* labels, std::int64_t row,
                                                      std::int64_t columns, Faults* faults) {
  const std::int64_t label = labels[row];
  if (0 <= label && label < columns) return label;
  const auto low_half = static_cast<unsigned long long>(label) & 0xffffffffu;
  // volatile: the threads of a row, and of other rows, may write, each a whole word
  static_cast<volatile Faults*>(faults)->bad_label =
      (static_cast<unsigned long long>(row) + 1) << 32 | low_half;
  return -1;
}

/// Forward and backward in one reading of the logits (rows, columns), a team of `lanes` threads per
/// row, `rows_a_block` rows per block: saved (rows, columns), unless null, = factor * (softmax -
/// onehot); the sum of the block's losses goes to `sink`. 16-byte loads.
template <class T, int width, int accesses, class Sink>
__global__ void __launch_bounds__(largest_team<T>, 1)
    cross_entropy_kernel(const T* logits, const std::int64_t* labels, T* saved, T factor,
                         bool aligned, std::int64_t rows, int columns, int lanes,
                         std::int64_t rows_a_block, Faults* faults, const Sink sink) {
  __shared__ T shared[warp_size];
  __shared__ double shared_losses[warp_size];
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const std::int64_t begin = blockIdx.x * rows_a_block, end = min(begin + rows_a_block, rows);
  double losses = 0;
  for (std::int64_t first = begin; first < end; first += threads / lanes) {
    const std::int64_t row = first + thread / lanes;
    const bool active = row < end;
    RowShare<T, width, accesses> share(thread % lanes, lanes, active ? columns : 0);
    share.load(logits + row * columns, aligned);
    const auto label = active ? static_cast<int>(checked_label(labels, row, columns, faults)) : -1;
    const T largest = share.max(shared);
    T at_label = 0;
    bool mine = false;  // whether this thread holds the label's element
    const T total = share.sum(shared, [&](T& element, int column) {
      const T shifted = element - largest;
      if (column == label) {
        at_label = shifted;
        mine = true;
      }
      return element = exp_of(shifted);
    });
    if (mine) losses += static_cast<double>(log_of(total) - at_label);
    if (active && label < 0 && share.lane == 0) losses = not_a_number;
    if (saved) {
      const T scale = 1 / total;
      share.for_each([&](T& element, int column) {
        element = factor * (element * scale - (column == label ? T(1) : T(0)));
      });
      share.store(saved + row * columns, aligned);
    }
  }
  const double total = team_fold(losses, Adding<double>(), threads, shared_losses);
  if (thread == 0) sink.put(blockIdx.x, total);
}

/// The losses of rows whose ExpSums are known.
template <class T>
struct RowLosses : SumSource<double, 1> {
  const T* logits;
  const std::int64_t* labels;
  std::int64_t columns;
  const ExpSum<T>* sums;
  Faults* faults;

  RowLosses(const Tensor& logits_, const Tensor& labels_, const ExpSum<T>* sums_, Faults* faults_)
      : logits(logits_.data<T>()),
        labels(labels_.data<std::int64_t>()),
        columns(logits_.size(1)),
        sums(sums_),
        faults(faults_) {}
  __device__ Pack<double, 1> load(std::int64_t row) const {
    const std::int64_t label = checked_label(labels, row, columns, faults);
    if (label < 0) return {{not_a_number}};
    const T shifted = logits[row * columns + label] - sums[row].largest;
    return {{static_cast<double>(log_of(sums[row].total) - shifted)}};
  }
};

/// factor * (softmax - onehot), for map_long_rows.
template <class T>
struct GradientOfRows {
  const T* logits;
  const std::int64_t* labels;
  std::int64_t columns;
  bool aligned;
  const ExpSum<T>* sums;
  T factor;

  struct Row {
    T largest, scale;
    std::int64_t label;  ///< counted from the matrix's beginning; -1: none
  };
  __device__ Row row(std::int64_t row) const {
    const std::int64_t label = labels[row];
    const bool valid = 0 <= label && label < columns;
    return {sums[row].largest, 1 / sums[row].total, valid ? row * columns + label : -1};
  }
  template <int width>
  __device__ Pack<T, width> pack(const Row& row, std::int64_t at) const {
    Pack<T, width> pack = load_pack<width>(logits + at, aligned);
#pragma unroll
    for (int i = 0; i < width; ++i)
      pack[i] = factor *
                (exp_of(pack[i] - row.largest) * row.scale - (at + i == row.label ? T(1) : T(0)));
    return pack;
  }
};

/// Rows per block. A small matrix is done by a single block, which can then write the mean itself.
std::int64_t rows_a_block(std::int64_t rows, std::int64_t columns, const RowTeams& teams) {
  if (teams.lanes <= warp_size && rows * columns <= 16384) return std::max<std::int64_t>(rows, 1);
  const std::int64_t turns = divide_up(rows, teams.per_block() * 4096);
  return teams.per_block() * std::clamp<std::int64_t>(turns, 1, 32);
}

template <class T>
void cross_entropy_of(const Tensor& logits_tensor, const Tensor& labels_tensor, const Tensor& loss,
                      const Tensor& saved_tensor, std::optional<double> dloss) {
  const auto queue = queue_of(loss);
  const std::int64_t rows = logits_tensor.size(0), columns = logits_tensor.size(1);
  const T* logits = logits_tensor.data<T>();
  const auto* labels = labels_tensor.data<std::int64_t>();
  T* saved = saved_tensor.defined() ? saved_tensor.data<T>() : nullptr;
  const Put<T> mean{loss.data<T>(), false, reciprocal(rows)};
  const T factor = dloss ? gradient_factor(reciprocal(rows), static_cast<T>(*dloss)) : T(1);

  const bool in_registers =
      with_rows_in_registers<T>(columns, [&](auto width, auto accesses, const RowTeams& teams) {
        const std::int64_t per_block = rows_a_block(rows, columns, teams);
        const std::int64_t blocks = std::max<std::int64_t>(1, divide_up(rows, per_block));
        const int threads =
            blocks == 1 && teams.lanes <= warp_size ? largest_team<T> : teams.threads;
        const bool aligned = is_aligned<width>(logits) && (!saved || is_aligned<width>(saved));
        const auto run = [&]<class Sink>(const Sink& sink) {
          launch<cross_entropy_kernel<T, width, accesses, Sink>>(
              {.grid = blocks_for(blocks, 1), .block = threads}, queue.stream, logits, labels,
              saved, factor, aligned, rows, static_cast<int>(columns), teams.lanes, per_block,
              queue.faults, sink);
        };
        if (blocks == 1) return run(mean);
        const Tensor sums = Tensor::empty({blocks}, DType::f64, loss.device());
        run(Keep<double>{sums.data<double>()});
        reduce_long_rows(loss.device(), Kept<Adding<double>>{sums.data<double>()}, 1, blocks, mean);
      });
  if (in_registers) return;
  with_width<T>(packs_fit<T>(columns), [&](auto width) {
    Tensor storage;
    const ExpSum<T>* sums = exp_sums<T, width>(logits_tensor, storage);
    // Before `saved`, which may be the logits, is written.
    reduce_long_rows(loss.device(), RowLosses<T>(logits_tensor, labels_tensor, sums, queue.faults),
                     1, rows, mean);
    if (saved)
      map_long_rows<T, width>(
          loss.device(), rows, columns, saved,
          GradientOfRows<T>{logits, labels, columns, is_aligned<width>(logits), sums, factor});
  });
}

/// dlogits (n) (+)= factor * dloss () * saved (n). 16-byte loads.
template <class T, bool accumulate>
__global__ void __launch_bounds__(map_threads)
    cross_entropy_backward_kernel(std::int64_t n, T* dlogits, const T* dloss, double factor,
                                  const T* saved) {
  const T scale = gradient_factor(factor, *dloss);
  if constexpr (accumulate)
    map_elements<2>(
        n, [=](T x, T before) { return before + scale * x; }, dlogits, saved,
        static_cast<const T*>(dlogits));
  else
    map_elements<4>(
        n, [=](T x) { return scale * x; }, dlogits, saved);
}

// Mean squared error.

/// The source of (x - y)^2.
template <class T, int width_>
struct SquaredDifferences : SumSource<double, width_> {
  const T *x, *y;
  bool aligned;

  SquaredDifferences(const T* x_, const T* y_)
      : x(x_), y(y_), aligned(is_aligned<width_>(x_) && is_aligned<width_>(y_)) {}
  static __device__ Pack<double, width_> squares(const Pack<T, width_>& a,
                                                 const Pack<T, width_>& b) {
    Pack<double, width_> result;
#pragma unroll
    for (int i = 0; i < width_; ++i) {
      const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      result[i] = difference * difference;
    }
    return result;
  }
  __device__ Pack<double, width_> load(std::int64_t at) const {
    return squares(load_pack<width_>(x + at, aligned), load_pack<width_>(y + at, aligned));
  }
  __device__ Pack<double, width_> load_first(std::int64_t at, int count) const {
    return squares(load_some<width_>(x + at, count), load_some<width_>(y + at, count));
  }
};

/// dx (n) (+)= factor * dloss () * (x - y) (n). 16-byte loads.
template <class T, bool accumulate>
__global__ void __launch_bounds__(map_threads)
    mse_backward_kernel(std::int64_t n, T* dx, const T* dloss, double factor, const T* x,
                        const T* y) {
  const T scale = gradient_factor(factor, *dloss);
  if constexpr (accumulate)
    map_elements<2>(
        n, [=](T a, T b, T before) { return before + scale * (a - b); }, dx, x, y,
        static_cast<const T*>(dx));
  else
    map_elements<2>(
        n, [=](T a, T b) { return scale * (a - b); }, dx, x, y);
}

}  // namespace

void CudaBackend::cross_entropy(const Tensor& logits, const Tensor& labels, const Tensor& loss,
                                const Tensor& saved, std::optional<double> dloss) {
  visit_floating("cross_entropy", logits.dtype(), [&](auto zero) {
    cross_entropy_of<decltype(zero)>(logits, labels, loss, saved, dloss);
  });
}

void CudaBackend::cross_entropy_backward(const Tensor& dloss, const Tensor& saved,
                                         const Tensor& dlogits, bool accumulate) {
  const std::int64_t n = saved.numel();
  if (n == 0) return;
  visit_floating("cross_entropy_backward", saved.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_flag(accumulate, [&](auto add) {
      constexpr int packs = add ? 2 : 4;
      launch<cross_entropy_backward_kernel<T, add>>(
          {.grid = map_blocks<packs, T>(n), .block = map_threads}, queue_of(saved).stream, n,
          dlogits.data<T>(), dloss.data<T>(), reciprocal(saved.size(0)), saved.data<T>());
    });
  });
}

void CudaBackend::mse(const Tensor& x, const Tensor& y, const Tensor& loss) {
  const std::int64_t n = x.numel();
  visit_floating("mse", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    reduce_long_rows(x.device(), SquaredDifferences<T, pack_width<T>>(x.data<T>(), y.data<T>()), 1,
                     n, Put<T>{loss.data<T>(), false, reciprocal(n)});
  });
}

void CudaBackend::mse_backward(const Tensor& dloss, const Tensor& x, const Tensor& y,
                               const Tensor& dx, bool accumulate) {
  const std::int64_t n = x.numel();
  if (n == 0) return;
  visit_floating("mse_backward", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    with_flag(accumulate, [&](auto add) {
      launch<mse_backward_kernel<T, add>>({.grid = map_blocks<2, T>(n), .block = map_threads},
                                          queue_of(x).stream, n, dx.data<T>(), dloss.data<T>(),
                                          2 * reciprocal(n), x.data<T>(), y.data<T>());
    });
  });
}

/// The mean of i^2 / 2 + delta (d - i), d = |x - y| and i = min(d, delta), in f64.
void CudaBackend::huber(const Tensor& x, const Tensor& y, double delta, const Tensor& loss) {
  const auto wide = [](const Tensor& like) {
    return Tensor::empty(like.shape(), DType::f64, like.device());
  };
  const Tensor d = wide(x), inner = wide(x), limit = wide(loss), mean = wide(loss);
  limit.fill(std::min(delta, std::numeric_limits<double>::max()));  // finite: 0 times it is 0
  kernels::cast(x, d);
  kernels::cast(y, inner);
  kernels::binary(Binary::sub, d, inner, d);
  kernels::unary(Unary::abs, d, d);
  kernels::binary(Binary::minimum, d, limit, inner);
  kernels::binary(Binary::sub, d, inner, d);
  kernels::binary(Binary::mul, d, limit, d);
  kernels::unary(Unary::square, inner, inner);
  kernels::scale(0.5, inner, d, true);
  kernels::sum(d, mean, false, static_cast<double>(std::max<std::int64_t>(x.numel(), 1)));
  kernels::cast(mean, loss);
}

void CudaBackend::huber_backward(const Tensor& dloss, const Tensor& x, const Tensor& y,
                                 double delta, const Tensor& dx, bool accumulate) {
  if (x.numel() == 0) return;
  const Tensor d = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor factor = Tensor::empty(dloss.shape(), x.dtype(), x.device());
  kernels::binary(Binary::sub, x, y, d);
  kernels::clip_by_value({&d, 1}, delta);
  kernels::scale(reciprocal(x.numel()), dloss, factor, false);
  kernels::binary(Binary::mul, d, factor, dx, accumulate);
}

}  // namespace lockstep::kernels
