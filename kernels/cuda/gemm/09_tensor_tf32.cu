/// Rung 9: tensor cores, for floats with 11 significant bits.
///
/// Rung 8 issues one instruction for 32 multiply-adds of a warp, and four of these per clock are
/// all that a multiprocessor can do. A tensor core does a whole product of small matrices per
/// instruction: mma.m16n8k8 is 16 * 8 * 8 = 1024 multiply-adds, and an H200 does 494 TFLOP/s this
/// way instead of 67. The price is precision: the factors are rounded to tf32, which has the 8
/// exponent bits of a float and 10 bits of mantissa instead of 23. Products are exact, sums are
/// f32. So the error of a result is at most about 2^-10 of the sum of its products' magnitudes, and
/// this rung is only for callers that ask for it (gemm_tf32).
///
/// Bytes become the problem again: each instruction wants (16 + 8) * 8 numbers from registers,
/// which come from shared memory. A warp of 64 x 64 results reads 32 words per thread for 32
/// instructions. The instruction fixes where each thread's words lie: with g = l / 4 and t = l % 4,
/// for thread l of the warp, it wants the elements (outer g, depth t). Rows of 16 + 4 words when
/// depth is contiguous, and of 128 + 8 (or 64 + 8) when it is not, put them into 32 different
/// banks:
///
///     20 g + t  mod 32:  0..3, 20..23, 8..11, 28..31, 16..19, 4..7, 24..27, 12..15
///     8 t + g   mod 32:  0..7, 8..15, 16..23, 24..31
///
/// Source: PTX ISA, "Matrix Fragments for mma.m16n8k8".
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_09_tensor_tf32_tf32 256x256x64 NN: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 6.00 (4.00), shared loads 1.00 (1.00), in 16-byte copies 524288 B,
//     DRAM 1.00 of the fewest
//   gemm_09_tensor_tf32_tf32 256x256x64 NT: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 8.00 (4.00), shared loads 1.00 (1.00), in 16-byte copies 524288 B,
//     DRAM 1.00 of the fewest
//   gemm_09_tensor_tf32_tf32 256x256x64 TN: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 4.00 (4.00), shared loads 1.00 (1.00), in 16-byte copies 524288 B,
//     DRAM 1.00 of the fewest
//   gemm_09_tensor_tf32_tf32_and_rows 256x256x64 TN: stores 15.12 (100 %), cp.async 16.00 (100 %),
//     into shared 4.00 (4.00), shared loads 1.00 (1.00), in 16-byte copies 524288 B,
//     DRAM 1.00 of the fewest

#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/tensor_product.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct Tf32Core {
  using Element = float;
  static constexpr int DEPTH = 8;
  static constexpr std::uint32_t ONES = 0x3f800000;

  template <bool DEPTH_CONTIGUOUS, int ROW, bool OUTER_FIRST>
  static __device__ __forceinline__ void read(std::uint32_t (&fragment)[4], const float* tile,
                                              int outer, int depth) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int along_outer = OUTER_FIRST ? i % 2 : i / 2,
                along_depth = OUTER_FIRST ? i / 2 : i % 2;
      const int o = outer + lane / 4 + along_outer * 8, d = depth + lane % 4 + along_depth * 4;
      fragment[i] = to_tf32(DEPTH_CONTIGUOUS ? tile[o * ROW + d] : tile[d * ROW + o]);
    }
  }

  static __device__ __forceinline__ void multiply(float (&sum)[4], const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[2]) {
    mma_m16n8k8_tf32(sum, a, b);
  }
};

/// One Tile of results per block, by mma. 16-byte loads where rows are aligned.
template <class Tile, bool A_DEPTH_CONTIGUOUS, bool B_DEPTH_CONTIGUOUS>
__global__ void __launch_bounds__(Tile::THREADS, 2)
    gemm_tensor_tf32_kernel(const GemmProblem<float> p, const Access access) {
  tensor_product<Tile, A_DEPTH_CONTIGUOUS, B_DEPTH_CONTIGUOUS>(p, access);
}

template <class Tile>
void run(const GemmProblem<float>& p, int slices, cudaStream_t stream) {
  with_tiles<Tile>(p, slices, stream, [&](const auto& sums, const Access& access, auto& shape) {
    with_orders(p, [&](auto a, auto b) {
      lockstep::cuda::launch<gemm_tensor_tf32_kernel<Tile, a.value, b.value>>(shape, stream, sums,
                                                                              access);
    });
  });
}

}  // namespace

void gemm_tensor_tf32(const GemmProblem<float>& p, const Plan& plan, cudaStream_t stream) {
  using Large = TensorTiling<Tf32Core, 64>;
  using Small = TensorTiling<Tf32Core, 32>;
  static_assert(has_speed<Large>(tensor_tf32_speeds[0]) && has_speed<Small>(tensor_tf32_speeds[1]));
  if (plan.tile == 0) return run<Large>(p, plan.slices, stream);
  run<Small>(p, plan.slices, stream);
}

}  // namespace lockstep::kernels::cuda
