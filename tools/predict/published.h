#pragma once
/// Times of other people's kernels on named GPUs, and those kernels as this model sees them: what
/// the prediction is held against.
///
/// Instructions and registers are those that nvcc 13 makes of the published sources (for sm_86 and
/// sm_90a). Accesses are counted by hand from their addresses, by the rules of simt/counters and of
/// kernels/cuda/gemm/warp_lanes.cuh: a read of 16 bytes per thread takes two passes where
/// neighbours read the same address, else four.

#include <string>
#include <vector>

#include "lockstep/tools/predict/gpu.h"
#include "lockstep/tools/predict/work.h"

namespace lockstep::predict {

struct Published {
  std::string_view gpu;
  Operation operation;
  double measured;     ///< flop per second
  std::string remark;  ///< where our kernel differs from it, or what is assumed
};

/// S. Boehm, "How to Optimize a CUDA Matmul Kernel for cuBLAS-like Performance", 2022: github.com/
/// siboehm/SGEMM_CUDA, f32, 4096 x 4096 x 4096, A6000. In the order of their speed.
std::vector<Published> published_boehm();

/// P. Shankhdhar, github.com/pranjalssh/fast.cu, README of its first version, 2024: bf16, 8192 x
/// 8192 x 8192, H100 SXM. In the order of their speed.
std::vector<Published> published_fast_cu();

/// W. Guo, T. Zadouri, T. Dao, "Getting Memory-bound Kernels to Speed-of-Light", 2025 (Quack):
/// bytes per second of softmax on an H100, input and output counted once. Rows are read once; by
/// torch.compile's kernel twice.
inline constexpr double quack_one_reading = 3.01e12, quack_two_readings = 1.89e12;

}  // namespace lockstep::predict
