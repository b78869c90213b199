#pragma once
/// Sums that are structures of several f64 (a Part: kernels/formulas/batch_norm_parts.h), in memory
/// and merged by the threads of a block.

#include <cstdint>
#include <cstring>

namespace lockstep::kernels {

/// `size` Parts in shared or global memory, number by number: f64 (numbers of a Part, size). So
/// neighbouring threads, or columns, are neighbours in memory: structures of 16 and 24 bytes side
/// by side would take 7 to 14 wavefronts where 2 do.
template <class Part>
struct Planes {
  static constexpr int numbers = sizeof(Part) / sizeof(double);
  double* at;
  std::int64_t size;

  __device__ Part load(std::int64_t i) const {
    double values[numbers];
#pragma unroll
    for (int n = 0; n < numbers; ++n) values[n] = at[n * size + i];
    Part part;
    memcpy(&part, values, sizeof part);
    return part;
  }
  __device__ void store(std::int64_t i, const Part& part) const {
    double values[numbers];
    memcpy(values, &part, sizeof part);
#pragma unroll
    for (int n = 0; n < numbers; ++n) at[n * size + i] = values[n];
  }
};

/// own := that of row 0 and of all others, merged by halves; right in row 0 alone. A row is
/// blockDim.x / rows threads. All threads of the block call it. `shared` has room for `width` parts
/// of each thread: those of a row are written once, when they are merged; row 0's never.
template <int rows, class Part, int width>
__device__ void merge_tree(Part (&own)[width], const Planes<Part>& shared) {
  const int threads = static_cast<int>(blockDim.x), thread = static_cast<int>(threadIdx.x);
  const int across = threads / rows, row = thread / across;
#pragma unroll
  for (int half = rows / 2; half > 0; half /= 2) {
    if (row >= half && row < 2 * half) {
#pragma unroll
      for (int k = 0; k < width; ++k) shared.store(k * threads + thread, own[k]);
    }
    __syncthreads();
    if (row < half) {
#pragma unroll
      for (int k = 0; k < width; ++k)
        own[k].merge(shared.load(k * threads + thread + half * across));
    }
  }
}

}  // namespace lockstep::kernels
