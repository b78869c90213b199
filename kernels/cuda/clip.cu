// Clipping of gradients on a GPU: the norm of many tensors in one pass over them, then a second one
// that scales. The host sees neither the norm nor the factor.
//
// Counted (./lockstep count --write; docs/counters.md):
//   global_norm 65536: 2 launches, DRAM 1.00 of the fewest
//     sum_squares_kernel: loads 16.00 (100 %), stores 1.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 1.00 (1.00)
//     reduce_chunks_kernel: loads 4.00 (100 %), stores 1.00 (100 %), shared loads 2.00 (2.00),
//       shared stores 1.00 (1.00)
//   clip_by_norm 65536: loads 13.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest

#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/reduction.cuh"
#include "lockstep/kernels/cuda/tensor_table.cuh"
#include "lockstep/kernels/formulas/clip_formulas.h"

namespace lockstep::kernels {
namespace {

using cuda::launch;
using cuda::Queue;
using cuda::queue_of;

/// The sum of the squares of the elements of x, in f64.
template <class T>
struct Squares : SumSource<double, pack_width<T>> {
  static constexpr int width = pack_width<T>;
  const T* x;
  bool aligned;

  __device__ Squares(const T* elements, bool is_aligned) : x(elements), aligned(is_aligned) {}
  static __device__ Pack<double, width> squared(const Pack<T, width>& values) {
    Pack<double, width> result;
#pragma unroll
    for (int i = 0; i < width; ++i) {
      const double value = static_cast<double>(values[i]);
      result[i] = value * value;
    }
    return result;
  }
  __device__ Pack<double, width> load(std::int64_t at) const {
    return squared(load_pack<width>(x + at, aligned));
  }
  __device__ Pack<double, width> load_first(std::int64_t at, int count) const {
    return squared(load_some<width>(x + at, count));
  }
};

template <class T>
struct SquaresEntry {
  TablePart part;
  const T* x;
  double* sums;  // one per chunk
};

/// 16-byte loads. The order of a chunk's sum does not depend on whether they are used.
template <class T>
__global__ void __launch_bounds__(table_threads)
    sum_squares_kernel(const __grid_constant__ TensorTable<SquaresEntry<T>> table) {
  __shared__ double shared[warp_size];
  const SquaresEntry<T>& entry = entry_of_block(table);
  const unsigned chunk = blockIdx.x - entry.part.first_block;
  const std::int64_t begin = chunk * table_chunk<T>;
  const double own = reduce_share(Squares<T>(entry.x, entry.part.aligned), begin,
                                  min(begin + table_chunk<T>, entry.part.count),
                                  static_cast<int>(threadIdx.x), table_threads);
  const double total = team_fold(own, Adding<double>(), table_threads, shared);
  if (threadIdx.x == 0) entry.sums[chunk] = total;
}

std::int64_t chunks_of(const Tensor& tensor) {
  return divide_up(static_cast<std::int64_t>(tensor.bytes()), table_chunk_bytes);
}

/// Sums of the chunks of all tensors of T, into the places that the chunks have among those of all
/// tensors.
template <class T>
void sum_squares(std::span<const Tensor> tensors, double* sums, const Queue& queue) {
  using Entry = SquaresEntry<T>;
  for_each_table<Entry>(
      tensors,
      [&](TensorTable<Entry>& table, const Tensor& tensor) {
        double* const own = sums;
        sums += chunks_of(tensor);
        if (tensor.dtype() != dtype_of<T>() || tensor.numel() == 0) return;
        const Entry entry{{}, tensor.data<T>(), own};
        table.template add<T>(entry, tensor, is_aligned(entry.x));
      },
      [&](const TensorTable<Entry>& table) {
        launch<sum_squares_kernel<T>>({.grid = table.blocks, .block = table_threads}, queue.stream,
                                      table);
      });
}

/// The sink of a sum of squares.
struct PutRoot {
  double* out;
  __device__ void put(std::int64_t, double value) const { *out = sqrt(value); }
};

template <class T>
struct ClipEntry {
  TablePart part;
  T* x;
};

/// `make(T)` gives the formula of clip_formulas.h: the factor is computed here, from a norm that
/// the host has not seen. 16-byte loads where x is aligned.
template <class T, class Make>
__global__ void __launch_bounds__(table_threads)
    clip_kernel(const __grid_constant__ TensorTable<ClipEntry<T>> table, const Make make) {
  const auto formula = make(T());
  if (formula.changes_nothing()) return;
  const ClipEntry<T>& entry = entry_of_block(table);
  for_chunk<T>(entry.part, [&](auto constant, std::int64_t i) {
    constexpr int width = decltype(constant)::value;
    Pack<T, width> values = load_pack<width>(entry.x + i);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = formula(values[k]);
    store_pack(entry.x + i, values);
  });
}

struct MakeByNorm {
  const double* norm;
  double max_norm;
  template <class T>
  __device__ ByNorm<T> operator()(T) const {
    return ByNorm<T>::of(*norm, max_norm);
  }
};

struct MakeByValue {
  double limit;
  template <class T>
  __device__ ByValue<T> operator()(T) const {
    return {static_cast<T>(limit)};
  }
};

template <class T, class Make>
void clip(std::span<const Tensor> tensors, const Make& make, const Queue& queue) {
  using Entry = ClipEntry<T>;
  for_each_table<Entry>(
      tensors,
      [](TensorTable<Entry>& table, const Tensor& tensor) {
        if (tensor.dtype() != dtype_of<T>() || tensor.numel() == 0) return;
        const Entry entry{{}, tensor.data<T>()};
        table.template add<T>(entry, tensor, is_aligned(entry.x));
      },
      [&](const TensorTable<Entry>& table) {
        launch<clip_kernel<T, Make>>({.grid = table.blocks, .block = table_threads}, queue.stream,
                                     table, make);
      });
}

}  // namespace

void CudaBackend::global_norm(std::span<const Tensor> tensors, const Tensor& out) {
  std::int64_t chunks = 0;
  for (const Tensor& tensor : tensors) chunks += chunks_of(tensor);
  const Tensor sums = Tensor::empty({chunks}, DType::f64, out.device());
  const Queue queue = queue_of(out);
  sum_squares<float>(tensors, sums.data<double>(), queue);
  sum_squares<double>(tensors, sums.data<double>(), queue);
  reduce_rows(out.device(), Elements<double, 1>(sums.data<double>()), 1, chunks,
              PutRoot{out.data<double>()});
}

void CudaBackend::clip_by_norm(std::span<const Tensor> tensors, const Tensor& norm,
                               double max_norm) {
  const MakeByNorm make{norm.data<double>(), max_norm};
  clip<float>(tensors, make, queue_of(norm));
  clip<double>(tensors, make, queue_of(norm));
}

void CudaBackend::clip_by_value(std::span<const Tensor> tensors, double limit) {
  const Queue queue = queue_of(tensors[0]);
  clip<float>(tensors, MakeByValue{limit}, queue);
  clip<double>(tensors, MakeByValue{limit}, queue);
}

}  // namespace lockstep::kernels
