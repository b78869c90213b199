/// Rung 12: the kernel of rung 11 for floats, rounded to tf32.
///
/// In bytes it is the same kernel: a row of a panel is 32 floats instead of 64 bf16, a wgmma takes
/// 8 of them, and runs half as fast. Two things differ.
///
/// - wgmma truncates floats to tf32, which would double the rounding error of rung 09 and bias it
///   towards zero. The copy engine rounds to the nearest instead, on the way, when the tensor map
///   says TFLOAT32.
/// - wgmma reads four-byte operands along k only. A matrix that lies the other way (B, unless
///   transposed; A, if transposed) is first turned over into scratch memory: 8 bytes of traffic per
///   element once, against 2 m flop (for B) that it takes part in. At 4096^3 that is 128 MiB: 28 us
///   at 4.8 TB/s, of a product of about 340 us. x w^T, a linear layer's forward pass, needs
///   none. The turned rows are padded to 16 bytes for the copy engine, so that any k will do.
///
/// Sources: PTX ISA 9.0, section 9.7.15.5.2 (truncation; the transposes of two-byte types alone);
/// CUDA driver API, CUtensorMapDataType.
//
// Counted (./lockstep count --write; docs/counters.md):
//   gemm_12_hopper_tf32_tf32 256x256x64 NN: 2 launches, DRAM 1.33 of the fewest
//     hopper_turn_kernel: loads 4.00 (100 %), stores 4.00 (100 %), shared loads 1.00 (1.00),
//       shared stores 1.00 (1.00)
//     hopper_product_kernel: stores 16.00 (100 %), shared loads 4.00 (4.00),
//       shared stores 2.00 (2.00), TMA 524288 B
//   gemm_12_hopper_tf32_tf32 256x256x64 NT: stores 16.00 (100 %), shared loads 4.00 (4.00),
//     shared stores 2.00 (2.00), TMA 524288 B, DRAM 1.00 of the fewest
//   gemm_12_hopper_tf32_tf32 256x256x64 TN: 3 launches, DRAM 1.67 of the fewest
//     hopper_turn_kernel: loads 4.00 (100 %), stores 4.00 (100 %), shared loads 1.00 (1.00),
//       shared stores 1.00 (1.00)
//     hopper_product_kernel: stores 16.00 (100 %), shared loads 4.00 (4.00),
//       shared stores 2.00 (2.00), TMA 524288 B
//   gemm_12_hopper_tf32_tf32_and_rows 256x256x64 TN: 3 launches, DRAM 1.66 of the fewest
//     hopper_turn_kernel: loads 4.00 (100 %), stores 4.00 (100 %), shared loads 1.00 (1.00),
//       shared stores 1.00 (1.00)
//     hopper_product_kernel: stores 15.58 (100 %), shared loads 4.00 (4.00),
//       shared stores 2.00 (2.00), TMA 524288 B
//   gemm_12_hopper_tf32_tf32_wide 256x256x64 NT: stores 16.00 (100 %), shared loads 4.00 (4.00),
//     shared stores 2.00 (2.00), TMA 131072 B, DRAM 1.00 of the fewest

#include <optional>

#include "lockstep/kernels/cuda/gemm/hopper/hopper.h"
#include "lockstep/kernels/cuda/gemm/hopper/product.cuh"
#include "lockstep/kernels/cuda/gemm/ladder.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int TURN = 32;      ///< tiles of 32 x 32, turned over in shared memory
constexpr int TURN_ROWS = 8;  ///< a block is 32 x 8 threads: each moves 4 elements

/// out (columns, rows), its rows `pitch` apart = the transpose of in (rows, columns). One block per
/// tile; reads and writes are both coalesced, and the column of padding keeps a column of the tile
/// in 32 different banks.
__global__ void hopper_turn_kernel(const float* __restrict__ in, float* __restrict__ out,
                                   std::int64_t rows, std::int64_t columns, std::int64_t pitch) {
  __shared__ float tile[TURN][TURN + 1];
  const std::int64_t tiles_across = (columns - 1) / TURN + 1;
  const std::int64_t row = blockIdx.x / tiles_across * TURN;
  const std::int64_t column = blockIdx.x % tiles_across * TURN;
  const int x = threadIdx.x;
  for (int y = threadIdx.y; y < TURN; y += TURN_ROWS)
    if (row + y < rows && column + x < columns) tile[y][x] = in[(row + y) * columns + column + x];
  __syncthreads();
  for (int y = threadIdx.y; y < TURN; y += TURN_ROWS)
    if (column + y < columns && row + x < rows) out[(column + y) * pitch + row + x] = tile[x][y];
}

/// A matrix with rows along k: the given one, or its transpose in new memory.
class AlongK {
 public:
  /// `matrix` is (size, k), or (k, size) if `turn`.
  AlongK(const float* matrix, std::int64_t size, std::int64_t k, bool turn, cudaStream_t stream)
      : matrix_(matrix), size_(size), k_(k), pitch_(k) {
    if (!turn) return;
    pitch_ = (k + 3) / 4 * 4;
    turned_.emplace(size * pitch_, stream);
    const std::int64_t tiles = ((k - 1) / TURN + 1) * ((size - 1) / TURN + 1);
    lockstep::cuda::launch<hopper_turn_kernel>(
        {.grid = static_cast<unsigned>(tiles), .block = dim3(TURN, TURN_ROWS)}, stream, matrix,
        turned_->data(), k, size, pitch_);
    matrix_ = turned_->data();
  }

  CUtensorMap map() const { return tensor_map(matrix_, size_, k_, pitch_); }

 private:
  const float* matrix_;
  std::int64_t size_, k_, pitch_;
  std::optional<Scratch> turned_;
};

}  // namespace

void gemm_hopper_tf32(const GemmProblem<float>& p, const HopperPlan& plan, cudaStream_t stream) {
  if (!hopper_can(p) || !hopper_available()) return gemm_tensor_tf32(p, stream);
  const AlongK a(p.a, p.m, p.k, p.transpose_a, stream);
  const AlongK b(p.b, p.n, p.k, !p.transpose_b, stream);
  run_plan<float, false, true>(p, a.map(), b.map(), plan, stream);
}

}  // namespace lockstep::kernels::cuda
