#pragma once
/// The kernel of rungs 11 and 12: the two differ in element type only, and in bytes they are one.
/// 11_hopper_bf16.cu tells what it does and why; hopper.cuh tells how operands lie in memory,
/// hopper_intrinsics.h holds the instructions.

#include <cudaTypedefs.h>

#include <algorithm>

#include "lockstep/core/cuda/launch.h"
#include "lockstep/kernels/cuda/gemm/hopper.cuh"
#include "lockstep/kernels/formulas/gemm.h"

namespace lockstep::kernels::cuda {
namespace {

namespace hw = ::hopper;

constexpr int CLUSTER = 2;    ///< blocks that share one tile of B
constexpr int CONSUMERS = 2;  ///< warpgroups that multiply; one more copies
constexpr int THREADS = (1 + CONSUMERS) * 128;
constexpr int TILE_M = CONSUMERS * hw::PANEL_ROWS;  ///< 128 rows of c per block
constexpr int TILE_N = hw::PRODUCT_N;               ///< 256 columns
constexpr int PANELS_A = TILE_M / hw::PANEL_ROWS;
constexpr int PANELS_B = TILE_N / hw::PANEL_ROWS;
constexpr int STAGES = 4;
constexpr int STEPS = hw::ROW_BYTES / 32;  ///< wgmmas over the k of one stage
constexpr int CONSUMER_WARPS = CONSUMERS * 4;

/// How an element type is written: two neighbours in a row of c at a time.
template <class T>
struct Element;

template <>
struct Element<__nv_bfloat16> {
  using Pair = __nv_bfloat162;
  static constexpr CUtensorMapDataType map_type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  static __device__ Pair pair(float2 x) { return __float22bfloat162_rn(x); }
  static __device__ float2 floats(Pair x) { return __bfloat1622float2(x); }
};

template <>
struct Element<__half> {
  using Pair = __half2;
  static constexpr CUtensorMapDataType map_type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  static __device__ Pair pair(float2 x) { return __float22half2_rn(x); }
  static __device__ float2 floats(Pair x) { return __half22float2(x); }
};

template <>
struct Element<float> {
  using Pair = float2;
  static constexpr CUtensorMapDataType map_type = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
  static __device__ Pair pair(float2 x) { return x; }
  static __device__ float2 floats(Pair x) { return x; }
};

/// One stage of the ring: 128 bytes of k for a tile of A and a tile of B.
struct Stage {
  unsigned char a[PANELS_A][hw::PANEL_BYTES];
  unsigned char b[PANELS_B][hw::PANEL_BYTES];
};
static_assert(sizeof(Stage) == 48 << 10);

/// 16 rows of c, 128 bytes each, on their way out of one warp. Rows are padded by 8 elements: then
/// the pairs that a warp writes at a time, 8 rows by 4 neighbours, lie in different banks.
template <class T>
struct Patch {
  static constexpr int columns = 128 / sizeof(T);
  alignas(16) T rows[16][columns + 8];
};

/// C: the elements of c.
template <class C>
struct Shared {
  Stage stages[STAGES];  ///< at a multiple of 1024, see hopper.cuh
  Patch<C> patches[CONSUMER_WARPS];
  hw::Barrier full[STAGES];   ///< phase i complete: the copies of the ring's round i have arrived
  hw::Barrier empty[STAGES];  ///< phase i complete: everybody has read what round i brought
};

/// With what it takes to move the beginning to a multiple of 1024.
template <class C>
constexpr std::size_t shared_bytes = sizeof(Shared<C>) + 1024;
static_assert(shared_bytes<float> <= 227 << 10, "what a block of a Hopper may have");

template <class C>
__device__ Shared<C>& shared_memory() {
  auto* bytes = dynamic_shared<unsigned char>();
  return *reinterpret_cast<Shared<C>*>(bytes + (1024 - shared_address(bytes) % 1024) % 1024);
}

/// A place in the ring. Producer and consumers walk it in step, each with its own place.
struct RingPlace {
  int stage = 0;
  std::uint32_t parity = 0;  ///< of the round

  __device__ void advance() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// What the kernel computes. n is a multiple of 16 bytes, c begins at one.
template <class C>
struct Output {
  C* c;
  const C* bias;
  int m, n;
  bool accumulate;
};

/// The order of the tiles. A cluster's tile is 256 x 256: 128 rows for each of its two blocks. 8 of
/// them, 2048 rows, make a band; tiles are numbered down the columns of a band, band after band.
/// So the 66 clusters that work at a time read 2048 rows of A and about as many columns of B: the
/// fewest bytes for 66 tiles, and most of them from the L2 cache.
struct Tiles {
  static constexpr int band = 8;
  int rows, columns;

  __host__ __device__ Tiles(int m, int n)
      : rows((m - 1) / (CLUSTER * TILE_M) + 1), columns((n - 1) / TILE_N + 1) {}
  __host__ __device__ int count() const { return rows * columns; }

  /// The first row and column of block `rank`'s part of tile i.
  __device__ int2 corner(int i, int rank) const {
    const int first = i / (band * columns) * band;
    const int height = min(band, rows - first);
    const int within = i % (band * columns);
    const int row = first + within % height;
    return make_int2((row * CLUSTER + rank) * TILE_M, within / height * TILE_N);
  }
};

/// One thread starts all copies. Coordinates are (inner, outer) of the matrix in memory.
template <class T, bool a_mn_major, bool b_mn_major, class C>
__device__ void produce(Shared<C>& shared, const CUtensorMap& a, const CUtensorMap& b,
                        const Tiles& tiles, int k_blocks, int rank) {
  constexpr int block_k = hw::ROW_BYTES / sizeof(T);
  constexpr int own_panels_b = PANELS_B / CLUSTER;  // the other blocks send theirs here
  constexpr std::uint16_t everybody = (1 << CLUSTER) - 1;
  RingPlace place;
  for (int i = blockIdx.x / CLUSTER; i < tiles.count(); i += gridDim.x / CLUSTER) {
    const int2 corner = tiles.corner(i, rank);
    for (int block = 0; block < k_blocks; ++block, place.advance()) {
      // In the first round no consumer has read anything yet: phase "-1" is taken for complete.
      hw::wait(shared.empty[place.stage], place.parity ^ 1);
      hw::Barrier& full = shared.full[place.stage];
      hw::arrive_expecting(full, sizeof(Stage));
      Stage& stage = shared.stages[place.stage];
      const int at_k = block * block_k;
#pragma unroll
      for (int panel = 0; panel < PANELS_A; ++panel) {
        const int row = corner.x + panel * hw::PANEL_ROWS;
        hw::load_panel(stage.a[panel], a, a_mn_major ? row : at_k, a_mn_major ? at_k : row, full);
      }
#pragma unroll
      for (int own = 0; own < own_panels_b; ++own) {
        const int panel = rank * own_panels_b + own;
        const int column = corner.y + panel * hw::PANEL_ROWS;
        hw::load_panel_to(everybody, stage.b[panel], b, b_mn_major ? column : at_k,
                          b_mn_major ? at_k : column, full);
      }
    }
  }
}

/// Adds the bias of this thread's columns, the first of which is in column `column` of c.
template <class C>
__device__ void add_bias(hw::Accumulators& sum, const Output<C>& out, int column) {
#pragma unroll
  for (int j = 0; j < TILE_N / 8; ++j) {
    if (column + 8 * j >= out.n) return;
    const auto left = static_cast<float>(out.bias[column + 8 * j]);
    const auto right = static_cast<float>(out.bias[column + 8 * j + 1]);
    sum[j][0] += left, sum[j][1] += right;
    sum[j][2] += left, sum[j][3] += right;
  }
}

/// A warp writes its 16 rows of the tile, from (row, column) on, in patches of 16 x 128 bytes: from
/// the accumulators, where each thread has pairs of columns, through shared memory, to c, 16 bytes
/// per thread and 128 contiguous ones per row. The sum is rounded once, after all additions.
template <class C>
__device__ void store(hw::Accumulators& sum, Patch<C>& patch, const Output<C>& out, int row,
                      int column) {
  using Pair = typename Element<C>::Pair;
  constexpr int chunk = 16 / sizeof(C);
  constexpr int groups = Patch<C>::columns / 8;
  const int lane = threadIdx.x % 32;
  if (out.bias != nullptr) add_bias(sum, out, column + 2 * (lane % 4));
#pragma unroll
  for (int first = 0; first < TILE_N / 8; first += groups, column += Patch<C>::columns) {
    // use(16 bytes of the patch, the same of c, or null beyond its end): 8 threads per row of 128
    // bytes, 4 rows at a time.
    const int at_column = column + lane % 8 * chunk;
    const auto each_chunk = [&](auto&& use) {
#pragma unroll
      for (int r = lane / 8; r < 16; r += 4)
        use(*reinterpret_cast<uint4*>(&patch.rows[r][lane % 8 * chunk]),
            row + r < out.m && at_column < out.n
                ? reinterpret_cast<uint4*>(out.c + std::int64_t{row + r} * out.n + at_column)
                : nullptr);
    };
    // use(a pair of the patch, and the two sums that belong there).
    const auto each_pair = [&](auto&& use) {
#pragma unroll
      for (int j = 0; j < groups; ++j)
#pragma unroll
        for (int upper = 0; upper < 2; ++upper)
          use(*reinterpret_cast<Pair*>(&patch.rows[lane / 4 + 8 * upper][8 * j + 2 * (lane % 4)]),
              sum[first + j][2 * upper], sum[first + j][2 * upper + 1]);
    };
    __syncwarp();  // the patch before this one has been read
    if (out.accumulate) {
      each_chunk([](uint4& staged, const uint4* c) { staged = c ? *c : uint4{}; });
      __syncwarp();
      each_pair([](const Pair& staged, float& left, float& right) {
        const float2 old = Element<C>::floats(staged);
        left += old.x, right += old.y;
      });
    }
    each_pair([](Pair& staged, float left, float right) {
      staged = Element<C>::pair(make_float2(left, right));
    });
    __syncwarp();
    each_chunk([](const uint4& staged, uint4* c) {
      if (c) *c = staged;
    });
  }
}

/// A warpgroup multiplies 64 rows of the block's tile of A with its tile of B.
template <class T, bool a_mn_major, bool b_mn_major, class C>
__device__ void consume(Shared<C>& shared, const Output<C>& out, const Tiles& tiles, int k_blocks,
                        int rank, int consumer) {
  const int warp = threadIdx.x / 32 % 4;
  const std::uint32_t lane = threadIdx.x % 32;
  // This warp has read the stage: it says so in every block, for each sends to all.
  const auto release = [&](int stage) {
    if (lane < CLUSTER) hw::arrive_in_block(shared.empty[stage], lane);
  };
  RingPlace place;
  for (int i = blockIdx.x / CLUSTER; i < tiles.count(); i += gridDim.x / CLUSTER) {
    const int2 corner = tiles.corner(i, rank);
    hw::Accumulators sum;
#pragma unroll
    for (auto& group : sum)
#pragma unroll
      for (float& value : group) value = 0.0f;

    int before = 0;
    for (int block = 0; block < k_blocks; ++block, place.advance()) {
      hw::wait(shared.full[place.stage], place.parity);
      const Stage& stage = shared.stages[place.stage];
      const std::uint64_t a = hw::descriptor<a_mn_major>(stage.a[consumer]);
      const std::uint64_t b = hw::descriptor<b_mn_major>(stage.b[0]);
      hw::pin(sum);
      hw::fence_products();
#pragma unroll
      for (int step = 0; step < STEPS; ++step)
        hw::issue_product<T, a_mn_major, b_mn_major>(sum, a + step * hw::next_step<a_mn_major>,
                                                     b + step * hw::next_step<b_mn_major>);
      hw::commit_products();
      hw::pin(sum);
      // The tensor cores go on with this block while we see that the one before is finished.
      hw::wait_products<1>();
      if (block > 0) release(before);
      before = place.stage;
    }
    hw::wait_products<0>();
    hw::pin(sum);
    release(before);
    store(sum, shared.patches[consumer * 4 + warp], out,
          corner.x + consumer * hw::PANEL_ROWS + warp * 16, corner.y);
  }
}

/// c (m, n) (+)= op(A) op(B) + bias; `a` and `b` describe the matrices as they lie in memory, boxes
/// are panels. As many blocks as fit the GPU take tile after tile. Panels come by TMA; products by
/// wgmma.
template <class T, bool transpose_a, bool transpose_b, class C>
__global__ void __launch_bounds__(THREADS, 1)
    hopper_product_kernel(const __grid_constant__ CUtensorMap a,
                          const __grid_constant__ CUtensorMap b, Output<C> out, int k) {
  // In memory, rows of A go along k, unless transposed; rows of B do when it is transposed.
  constexpr bool a_mn_major = transpose_a;
  constexpr bool b_mn_major = !transpose_b;
  constexpr int block_k = hw::ROW_BYTES / sizeof(T);
  Shared<C>& shared = shared_memory<C>();
  const int rank = hw::cluster_rank();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      hw::init(shared.full[stage], 1);
      hw::init(shared.empty[stage], CLUSTER * CONSUMER_WARPS);
    }
    hw::fence_init();
  }
  __syncwarp();
  hw::cluster_sync();

  const Tiles tiles(out.m, out.n);
  const int k_blocks = (k - 1) / block_k + 1;
  // From thread 0 of the warp, so that the compiler knows: all its threads have the same value.
  const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
  // 65536 registers for 384 threads are 168 each; 168 * 384 = 40 * 128 + 232 * 256.
  if (warpgroup == 0) {
    hw::give_registers<40>();
    if (threadIdx.x == 0) produce<T, a_mn_major, b_mn_major>(shared, a, b, tiles, k_blocks, rank);
    hw::cluster_sync();
  } else {
    hw::take_registers<232>();
    consume<T, a_mn_major, b_mn_major>(shared, out, tiles, k_blocks, rank, warpgroup - 1);
    // No block leaves while a neighbour may still write to its shared memory.
    hw::cluster_sync();
  }
}

// ---- host --------------------------------------------------------------------------------------

/// The driver's function that writes a tensor map, found without linking to the driver.
inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    lockstep::cuda::call("gemm_hopper", "cudaGetDriverEntryPointByVersion",
                         cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                          12000, cudaEnableDefault, &result));
    check<DeviceError>(result == cudaDriverEntryPointSuccess,
                       "[gemm_hopper] the driver has no cuTensorMapEncodeTiled (result {})",
                       static_cast<int>(result));
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  }();
  return encoder;
}

/// Describes a row-major (rows, inner) matrix with rows `pitch` elements apart to the copy engine,
/// which takes it panel by panel: 128 bytes of 64 rows. For float, the engine also rounds to tf32
/// as it copies (the tensor cores themselves would truncate).
template <class T>
CUtensorMap tensor_map(const T* matrix, std::int64_t rows, std::int64_t inner, std::int64_t pitch) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(inner), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(pitch) * sizeof(T)};
  const cuuint32_t box[] = {hw::ROW_BYTES / sizeof(T), hw::PANEL_ROWS};
  const cuuint32_t every_element[] = {1, 1};
  CUtensorMap map;
  const CUresult result = tensor_map_encoder()(
      &map, Element<T>::map_type, 2, const_cast<T*>(matrix), sizes, row_bytes, box, every_element,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check<DeviceError>(result == CUDA_SUCCESS,
                     "[gemm_hopper] cuTensorMapEncodeTiled refuses a ({}, {}) matrix: error {}",
                     rows, inner, static_cast<int>(result));
  return map;
}

/// An attribute of the current device.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  lockstep::cuda::call("gemm_hopper", "cudaGetDevice", cudaGetDevice(&device));
  lockstep::cuda::call("gemm_hopper", "cudaDeviceGetAttribute",
                       cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

/// Starts the kernel: as many clusters as the GPU has multiprocessors for, or as there are tiles.
template <class T, bool transpose_a, bool transpose_b, class C>
void launch_product(const CUtensorMap& a, const CUtensorMap& b, const Output<C>& out, int k,
                    cudaStream_t stream) {
  const int clusters = std::min(device_attribute(cudaDevAttrMultiProcessorCount) / CLUSTER,
                                Tiles(out.m, out.n).count());
  lockstep::cuda::launch<hopper_product_kernel<T, transpose_a, transpose_b, C>>(
      {.grid = static_cast<unsigned>(clusters * CLUSTER),
       .block = THREADS,
       .shared_bytes = shared_bytes<C>,
       .cluster = CLUSTER},
      stream, a, b, out, k);
}

}  // namespace
}  // namespace lockstep::kernels::cuda
