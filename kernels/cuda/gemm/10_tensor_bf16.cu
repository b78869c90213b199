/// Rung 10: tensor cores, for 16-bit numbers.
///
/// A number of 16 bits is half the traffic at every level of memory, and tensor cores are twice as
/// fast again: mma.m16n8k16 is 2048 multiply-adds, 989 TFLOP/s on an H200. bf16 has the range of a
/// float and 8 significant bits, f16 has 11 bits and ends at 65504. Products are exact, sums are
/// f32; a result of 16 bits is rounded once, at the end.
///
/// In rung 9 a thread reads its operands word by word, 32 reads for 32 instructions. For 16-bit
/// numbers there is an instruction made for this pattern: ldmatrix. Each thread of the warp names
/// one row of 8 numbers (16 bytes), and the warp receives four matrices of 8 x 8 spread as mma
/// wants them:
///
///                    matrix 0 | matrix 2      threads  0..7 name the rows of matrix 0,
///     16 outers x    ---------+---------              8..15 those of matrix 1, and so on
///     16 depths      matrix 1 | matrix 3
///
/// which is one instruction for a whole operand of 16 x 16. Where outer is contiguous in memory
/// instead, the same four matrices are stored transposed, and ldmatrix.trans turns them around: so
/// all four transposes cost the same. The eight rows of a matrix must start in different groups of
/// four banks; rows in shared memory are 80 bytes apart (depth contiguous) or 272 (144 for small
/// tiles), which modulo 128 are 0, 80, 32, 112, 64, 16, 96, 48 and 0, 16, 32, ...
///
/// Factors of small products may also lie in memory as f32, which saves the casts before them: each
/// such factor's tiles are f32, and its numbers are rounded, to the nearest and ties to even, while
/// they go to registers. With g = l / 4 and t = l % 4, thread l wants the pairs (outer g, depths
/// 2 t and 2 t + 1). It reads one at once where depth is contiguous, 8 bytes, half a warp at a
/// time; rows of 32 + 8 words put them into 32 banks. Elsewhere it reads two words, from rows of
/// 64 + 4:
///
///     40 g + 2 t  mod 32, g < 4:  0..7, 8..15, 16..23, 24..31
///     136 t + g   mod 32:         0..7, 8..15, 16..23, 24..31
///
/// Source: PTX ISA, "ldmatrix" and "Matrix Fragments for mma.m16n8k16".
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_10_tensor_bf16_bf16 256x256x64 NN: stores 8.00 (100 %), cp.async 16.00 (100 %),
//     into shared 6.00 (4.00), shared loads 4.00 (4.00), in 16-byte copies 262144 B,
//     DRAM 1.00 of the fewest
//   gemm_10_tensor_bf16_bf16 256x256x64 NT: stores 8.00 (100 %), cp.async 16.00 (100 %),
//     into shared 8.00 (4.00), shared loads 4.00 (4.00), in 16-byte copies 262144 B,
//     DRAM 1.00 of the fewest
//   gemm_10_tensor_bf16_bf16 256x256x64 TN: stores 8.00 (100 %), cp.async 16.00 (100 %),
//     into shared 4.00 (4.00), shared loads 4.00 (4.00), in 16-byte copies 262144 B,
//     DRAM 1.00 of the fewest
//   gemm_10_tensor_bf16_bf16_and_rows 256x256x64 TN: stores 7.59 (100 %), cp.async 16.00 (100 %),
//     into shared 4.00 (4.00), shared loads 4.00 (4.00), in 16-byte copies 262144 B,
//     DRAM 1.00 of the fewest
//   gemm_10_tensor_bf16_bf16_f32 256x256x64 NN: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 6.00 (4.00), shared loads 4.00 (4.00), in 16-byte copies 262144 B,
//     DRAM 1.00 of the fewest
//   gemm_10_tensor_bf16_bf16_f32 256x256x64 NT: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 8.00 (4.00), shared loads 4.00 (4.00), in 16-byte copies 262144 B,
//     DRAM 1.00 of the fewest
//   gemm_10_tensor_bf16_bf16_f32 256x256x64 TN: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 4.00 (4.00), shared loads 4.00 (4.00), in 16-byte copies 262144 B,
//     DRAM 1.00 of the fewest
//   gemm_10_tensor_bf16_bf16_from_f32 256x256x64 NN: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 4.00 (4.00), shared loads 1.33 (1.33), in 16-byte copies 524288 B,
//     DRAM 1.00 of the fewest
//   gemm_10_tensor_bf16_bf16_from_f32 256x256x64 NT: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 4.00 (4.00), shared loads 2.00 (2.00), in 16-byte copies 524288 B,
//     DRAM 1.00 of the fewest
//   gemm_10_tensor_bf16_bf16_from_f32 256x256x64 TN: stores 16.00 (100 %), cp.async 16.00 (100 %),
//     into shared 4.00 (4.00), shared loads 1.00 (1.00), in 16-byte copies 524288 B,
//     DRAM 1.00 of the fewest

#include <cstring>

#include "lockstep/kernels/cuda/gemm/ladder.h"
#include "lockstep/kernels/cuda/gemm/tensor_product.cuh"

namespace lockstep::kernels::cuda {
namespace {

template <class T>
struct Core16 {
  using Element = T;
  static constexpr int DEPTH = 16;
  static constexpr std::uint32_t ONES = std::is_same_v<T, __half> ? 0x3c003c00 : 0x3f803f80;

  /// The registers of `a` count the 8 x 8 matrices along the outer dimension first. Those of two
  /// `b`, side by side, count along the depth: so each `b` is two registers in a row, and an
  /// instruction needs no moves.
  template <bool DEPTH_CONTIGUOUS, int ROW, bool OUTER_FIRST>
  static __device__ __forceinline__ void read(std::uint32_t (&fragment)[4], const T* tile,
                                              int outer, int depth) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first = lane / 8 % 2 * 8, second = lane / 16 * 8;
    const int matrix_outer = outer + (OUTER_FIRST ? first : second);
    const int matrix_depth = depth + (OUTER_FIRST ? second : first);
    if constexpr (DEPTH_CONTIGUOUS)
      ldmatrix_x4(fragment, tile + (matrix_outer + lane % 8) * ROW + matrix_depth);
    else
      ldmatrix_x4_trans(fragment, tile + (matrix_depth + lane % 8) * ROW + matrix_outer);
  }

  /// The same of a tile of f32, rounded.
  template <bool DEPTH_CONTIGUOUS, int ROW, bool OUTER_FIRST>
  static __device__ __forceinline__ void read(std::uint32_t (&fragment)[4], const float* tile,
                                              int outer, int depth) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int along_outer = OUTER_FIRST ? i % 2 : i / 2,
                along_depth = OUTER_FIRST ? i / 2 : i % 2;
      const int o = outer + lane / 4 + along_outer * 8, d = depth + lane % 4 * 2 + along_depth * 8;
      if constexpr (DEPTH_CONTIGUOUS) {
        const auto two = load_pack<2>(tile + o * ROW + d);
        fragment[i] = pair(two[0], two[1]);
      } else {
        fragment[i] = pair(tile[d * ROW + o], tile[(d + 1) * ROW + o]);
      }
    }
  }

  /// A register of two rounded numbers, the first in its lower half.
  static __device__ __forceinline__ std::uint32_t pair(float first, float second) {
    std::uint32_t bits;
    if constexpr (std::is_same_v<T, __half>) {
      const __half2 rounded = __floats2half2_rn(first, second);
      memcpy(&bits, &rounded, sizeof(bits));
    } else {
      const __nv_bfloat162 rounded = __floats2bfloat162_rn(first, second);
      memcpy(&bits, &rounded, sizeof(bits));
    }
    return bits;
  }

  static __device__ __forceinline__ void multiply(float (&sum)[4], const std::uint32_t (&a)[4],
                                                  const std::uint32_t (&b)[2]) {
    if constexpr (std::is_same_v<T, __half>)
      mma_m16n8k16_f16(sum, a, b);
    else
      mma_m16n8k16_bf16(sum, a, b);
  }
};

/// One Tile of results per block, by mma. 16-byte loads where rows are aligned.
template <class Tile, bool A_DEPTH_CONTIGUOUS, bool B_DEPTH_CONTIGUOUS, class C>
__global__ void __launch_bounds__(Tile::THREADS, 2)
    gemm_tensor_bf16_kernel(const GemmProblem<typename Tile::Element, C> p, const Access access) {
  tensor_product<Tile, A_DEPTH_CONTIGUOUS, B_DEPTH_CONTIGUOUS>(p, access);
}

/// Whether there is such a kernel. `a`, `b`: their depth is contiguous.
template <class Tile, class C>
constexpr bool has_kernel(bool a, bool b) {
  using T = typename Tile::Element;
  constexpr bool a_f32 = !std::is_same_v<typename Tile::A, T>;
  constexpr bool b_f32 = !std::is_same_v<typename Tile::B, T>;
  return (!a_f32 && !b_f32) || rounds_in_layout(!a, b, b_f32, std::is_same_v<C, float>);
}

template <class Tile, class C>
void run(const GemmProblem<typename Tile::Element, C>& p, int slices, cudaStream_t stream) {
  const auto start = [&]<class T, class Sum>(const GemmProblem<T, Sum>& sums, const Access& access,
                                             const auto& shape) {
    with_orders(p, [&](auto a, auto b) {
      if constexpr (has_kernel<Tile, Sum>(a.value, b.value))
        lockstep::cuda::launch<gemm_tensor_bf16_kernel<Tile, a.value, b.value, Sum>>(shape, stream,
                                                                                     sums, access);
      else
        fail<UsageError>("[matmul] rung 10 rounds no factors that lie in this way");
    });
  };
  with_tiles<Tile>(p, slices, stream, start);
}

template <class T, class C>
void run_plan(const GemmProblem<T, C>& p, const Plan& plan, cudaStream_t stream) {
  using Large = TensorTiling<Core16<T>, 64>;
  using Small = TensorTiling<Core16<T>, 32>;
  using A32 = TensorTiling<Core16<T>, 32, float, T>;
  using B32 = TensorTiling<Core16<T>, 32, T, float>;
  using Both32 = TensorTiling<Core16<T>, 32, float, float>;
  static_assert(has_speed<Large>(tensor_16_speeds[0]) && has_speed<Small>(tensor_16_speeds[1]) &&
                has_speed<Both32>(rounding_speeds[0]));
  if (p.a_f32 && p.b_f32) return run<Both32>(p, plan.slices, stream);
  if (p.a_f32) return run<A32>(p, plan.slices, stream);
  if (p.b_f32) return run<B32>(p, plan.slices, stream);
  if (plan.tile == 0) return run<Large>(p, plan.slices, stream);
  run<Small>(p, plan.slices, stream);
}

}  // namespace

template <class T, class C>
void gemm_tensor_16(const GemmProblem<T, C>& p, const Plan& plan, cudaStream_t stream) {
  run_plan(on_device(p), plan, stream);
}
template void gemm_tensor_16(const GemmProblem<BFloat16>&, const Plan&, cudaStream_t);
template void gemm_tensor_16(const GemmProblem<Half>&, const Plan&, cudaStream_t);
template void gemm_tensor_16(const GemmProblem<BFloat16, float>&, const Plan&, cudaStream_t);
template void gemm_tensor_16(const GemmProblem<Half, float>&, const Plan&, cudaStream_t);

}  // namespace lockstep::kernels::cuda
