#pragma once
/// How the 32 threads of a warp share a tile of results in rungs 7 and 8. For .cu files only.

#include <cuda_runtime.h>

namespace lockstep::kernels::cuda {

/// A thread's place in the 4 rows and 8 columns of its warp. All threads of a row read the same
/// numbers of `a`, all threads of a column the same of `b`. The numbers are CUDA's lane ids.
///
///     column    0   1   2   3   4   5   6   7
///     row 0     0   1   4   5   8   9  12  13
///     row 1     2   3   6   7  10  11  14  15        bits of the thread's number:
///     row 2    16  17  20  21  24  25  28  29            4    3    2    1    0
///     row 3    18  19  22  23  26  27  30  31          row  col  col  row  col
///
/// A read of 16 bytes per thread, 512 bytes per warp, takes four passes through shared memory, or
/// two if every thread reads the same address as the thread whose number differs in bit 0 (true of
/// `a` here), or as the one that differs in bit 1 (true of `b`). Numbering the threads row by row
/// would break that for `b`. (The rule is undocumented; G. Smith of NVIDIA gave it in the developer
/// forums, "Unexpected shared memory bank conflict", for compute capability 7.)
struct LanePlace {
  int row, column;
};
__device__ __forceinline__ LanePlace lane_place() {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return {(lane >> 1 & 1) | (lane >> 4 & 1) << 1, (lane & 1) | (lane >> 2 & 3) << 1};
}

}  // namespace lockstep::kernels::cuda
