/// Clusters, barriers in shared memory, the copy engine: what each does, and the bugs that show.
/// (Products by warpgroups: warpgroup_test.cu.)

#include <cmath>
#include <cstring>
#include <iterator>

#include "simt/panels.h"

namespace simt::test {
namespace {

__global__ void where_kernel(int* out) {
  hopper::cluster_sync();
  const unsigned block = blockIdx.x + blockIdx.y * gridDim.x;
  if (threadIdx.x == 0) out[block] = static_cast<int>(hopper::cluster_rank());
}

TEST_CASE("clusters: ranks, and what is refused") {
  const Device<int> out(24);
  const Shape shape{.grid = {6, 4}, .block = 32, .cluster = {3, 2}};
  CHECK(try_launch(where_kernel, shape, nullptr, out) == cudaErrorNotSupported);  // 8.0
  for (const Config& config : every_order()) {
    const Settings settings(hopper(config));
    launch(where_kernel, shape, nullptr, out);
    const std::vector<int> ranks = out.read();
    for (int i = 0; i < 24; ++i) CHECK(ranks[i] == i % 3 + i / 6 % 2 * 3);
  }
  const Settings settings(hopper());
  CHECK(try_launch(where_kernel, {.grid = 4, .block = 32, .cluster = 3}, nullptr, out) ==
        cudaErrorInvalidClusterSize);
  CHECK(try_launch(where_kernel, {.grid = 16, .block = 32, .cluster = 16}, nullptr, out) ==
        cudaErrorInvalidClusterSize);
  CHECK(try_launch(where_kernel, {.grid = 2, .block = 33, .cluster = 2}, nullptr, out) ==
        cudaErrorNotSupported);
}

TEST_CASE("clusters: 8 blocks, 16 if that is allowed, and no more") {
  const Settings settings(hopper());
  const Device<int> out(32);
  const auto of = [&](unsigned blocks) {
    return try_launch(where_kernel, {.grid = 32, .block = 32, .cluster = blocks}, nullptr, out);
  };
  const auto allow = [](int value) {
    ok(cudaFuncSetAttribute(where_kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, value));
  };
  CHECK(of(8) == cudaSuccess);
  CHECK(of(16) == cudaErrorInvalidClusterSize);
  allow(1);
  CHECK(of(16) == cudaSuccess);
  const std::vector<int> ranks = out.read();
  for (int i = 0; i < 32; ++i) CHECK(ranks[i] == i % 16);
  CHECK(of(32) == cudaErrorInvalidClusterSize);
  allow(0);
  CHECK(of(16) == cudaErrorInvalidClusterSize);
}

__global__ void static_kernel(int* out) {
  __shared__ int shared[32];
  shared[threadIdx.x] = 1;
  out[threadIdx.x] = shared[31 - threadIdx.x];
}

TEST_CASE("clusters: static shared memory is refused") {
  const Settings settings(hopper());
  const Device<int> out(32);
  CHECK(try_launch(static_kernel, {.grid = 2, .block = 32, .cluster = 2}, nullptr, out) ==
        cudaErrorNotSupported);
}

enum class Read { of_neighbour, of_no_block, beyond_the_end, unaligned, after_the_end };

/// Each block leaves 4 numbers for each thread, and reads what the next block has.
template <Read read>
__global__ void neighbour_sums_kernel(float* out) {
  auto* const own = dynamic_shared<float4>();
  const unsigned thread = threadIdx.x, block = hopper::cluster_rank(), next = (block + 1) % 3;
  const auto number = static_cast<float>(100 * block + thread);
  own[thread] = make_float4(number, number + 0.25f, number + 0.5f, number + 0.75f);
  hopper::cluster_sync();
  if (read == Read::after_the_end && block == 1) return;
  const auto* const floats = reinterpret_cast<const float*>(own + thread);
  const float4 all = read == Read::of_no_block      ? hopper::read_in_block(own, 3)
                     : read == Read::beyond_the_end ? hopper::read_in_block(own + 32, next)
                     : read == Read::unaligned
                         ? hopper::read_in_block(reinterpret_cast<const float4*>(floats + 1), next)
                         : hopper::read_in_block(own + thread, next);
  out[(block * 32 + thread) * 2] = all.x + all.w;
  out[(block * 32 + thread) * 2 + 1] = hopper::read_in_block(floats + 2, next);
  if (read != Read::after_the_end) hopper::cluster_sync();
}

TEST_CASE("clusters: a block reads the shared memory of another") {
  const Shape shape{.grid = 3, .block = 32, .shared_bytes = 512, .cluster = 3};
  const Device<float> out(192);
  for (const Config& config : every_order()) {
    const Settings settings(hopper(config));
    launch(neighbour_sums_kernel<Read::of_neighbour>, shape, nullptr, out);
    const std::vector<float> sums = out.read();
    for (int i = 0; i < 96; ++i) {
      const auto number = static_cast<float>((i / 32 + 1) % 3 * 100 + i % 32);
      CHECK(sums[2 * i] == 2 * number + 0.75f);
      CHECK(sums[2 * i + 1] == number + 0.5f);
    }
  }
  const Settings settings(hopper());
  const auto report = [&](auto kernel) { return report_of(kernel, shape, out); };
  CHECK(contains(report(neighbour_sums_kernel<Read::of_no_block>),
                 "ld.shared::cluster of block 3 of a cluster of 3"));
  CHECK(contains(report(neighbour_sums_kernel<Read::beyond_the_end>),
                 "ld.shared::cluster of what is not 16 aligned bytes of shared memory"));
  CHECK(contains(report(neighbour_sums_kernel<Read::unaligned>),
                 "ld.shared::cluster of what is not 16 aligned bytes of shared memory"));
  const Settings last_block_first(hopper(in_order(Order::descending)));
  CHECK(contains(report(neighbour_sums_kernel<Read::after_the_end>),
                 "ld.shared::cluster of a block that ended"));
}

TEST_CASE("clusters: up to 4,096 threads") {
  const Settings settings(hopper());
  const Device<int> out(8);
  launch(where_kernel, {.grid = 8, .block = 512, .cluster = 8}, nullptr, out);
  const std::vector<int> ranks = out.read();
  for (int i = 0; i < 8; ++i) CHECK(ranks[i] == i);
  CHECK(try_launch(where_kernel, {.grid = 8, .block = 544, .cluster = 8}, nullptr, out) ==
        cudaErrorNotSupported);
}

enum class Bug {
  none,
  no_fence,
  no_wait,
  no_announcement,
  next_parity,
  parity_2,
  leaves,
  twice,
  init_twice
};

/// Block 0 of two copies a box into both. They write what is in their shared memory.
template <Bug bug>
__global__ void copy_kernel(const __grid_constant__ CUtensorMap map, float* out) {
  unsigned char* panel = first_panel();
  auto& full = *reinterpret_cast<hopper::Barrier*>(panel + panel_bytes);
  if (threadIdx.x == 0) {
    hopper::init(full, 1);
    if (bug == Bug::init_twice) hopper::init(full, 1);
    if (bug != Bug::no_fence) hopper::fence_init();
  }
  hopper::cluster_sync();
  if (threadIdx.x == 0) {
    if (hopper::cluster_rank() == 0) hopper::load_panel_to(0b11, panel, map, 16, 32, full);
    if (bug != Bug::no_announcement) hopper::arrive_expecting(full, panel_bytes);
    if (bug == Bug::twice) hopper::arrive_expecting(full, panel_bytes);
  }
  if (bug == Bug::leaves) return;
  if (bug != Bug::no_wait) hopper::wait(full, 0);
  if (bug == Bug::next_parity) hopper::wait(full, 1);  // of a phase in which nothing happens
  if (bug == Bug::parity_2) hopper::wait(full, 2);
  for (unsigned i = threadIdx.x; i < 64 * 32; i += blockDim.x) {
    const unsigned row = i / 32, chunk = i / 4 % 8;
    const auto* place = panel + row * 128 + (chunk ^ row % 8) * 16 + i % 4 * 4;
    out[hopper::cluster_rank() * 64 * 32 + i] = *reinterpret_cast<const float*>(place);
  }
  if (bug == Bug::no_wait) hopper::wait(full, 0);
  hopper::cluster_sync();
}

constexpr Shape copy_shape{
    .grid = 2, .block = 64, .shared_bytes = panel_bytes + 1024 + 8, .cluster = 2};

/// (70, 40) floats, each with a value of its own.
std::vector<float> numbers() {
  std::vector<float> values(70 * 40);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  return values;
}

TEST_CASE("the copy engine: swizzled, to two blocks, zeros from outside of the matrix") {
  const Device<float> data(numbers()), out(2 * 64 * 32);
  for (const Config& config : every_order()) {
    const Settings settings(hopper(config));
    launch(copy_kernel<Bug::none>, copy_shape, nullptr, map_of(data, 70, 40), out);
    const std::vector<float> results = out.read();
    int wrong = 0;
    for (int i = 0; i < 2 * 64 * 32; ++i) {
      const int row = i / 32 % 64 + 32, column = i % 32 + 16;
      const int expected = row < 70 && column < 40 ? row * 40 + column + 1 : 0;
      wrong += results[i] != static_cast<float>(expected);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("the copy engine: floats to tf32, to the nearest, ties to even") {
  constexpr std::uint32_t pairs[][2] = {
      {0x3f800fff, 0x3f800000}, {0x3f801000, 0x3f800000},  // below a tie, and at it
      {0x3f801001, 0x3f802000}, {0x3f803000, 0x3f804000},  // above it; the next one goes up
      {0xbf801000, 0xbf800000}, {0x3fffffff, 0x40000000},  // carries into the exponent
      {0x7f7fffff, 0x7f800000}, {0xff800000, 0xff800000},  // to infinity, which stays
      {0x7fc12345, 0x7fc12345}, {0x3f804000, 0x3f804000},  // NaN stays, and what fits
  };
  std::vector<float> values = numbers();
  float* first = &values[32 * 40 + 16];  // of the box
  for (std::size_t i = 0; i < std::size(pairs); ++i) std::memcpy(first + i, pairs[i], 4);
  const Device<float> data(values), out(2 * 64 * 32);
  const Settings settings(hopper());
  for (const bool to_tf32 : {false, true}) {
    const auto type = to_tf32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    launch(copy_kernel<Bug::none>, copy_shape, nullptr, map_of(data, 70, 40, type), out);
    const std::vector<float> results = out.read();
    for (std::size_t i = 0; i < std::size(pairs); ++i) {
      CAPTURE(i);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &results[i], 4);
      CHECK(bits == pairs[i][to_tf32]);
    }
  }
}

TEST_CASE("a copy that was not waited for reads as NaN; one that comes too late is reported") {
  const Device<float> data(numbers()), out(2 * 64 * 32);
  const Settings settings(hopper());
  launch(copy_kernel<Bug::no_wait>, copy_shape, nullptr, map_of(data, 70, 40), out);
  CHECK(std::isnan(out.read()[0]));
  const std::string report =
      report_of(copy_kernel<Bug::leaves>, copy_shape, map_of(data, 70, 40), out);
  INFO(report);
  CHECK(contains(report, "a copy arrives in a block that has ended in kernel "));
}

TEST_CASE("barriers in shared memory: a fence between their init and the copy engine") {
  const Device<float> data(numbers()), out(2 * 64 * 32);
  const Settings settings(hopper());
  const std::string report =
      report_of(copy_kernel<Bug::no_fence>, copy_shape, map_of(data, 70, 40), out);
  INFO(report);
  CHECK(contains(report,
                 "cp.async.bulk.tensor on a barrier without a fence.mbarrier_init after its init"));
}

/// One of two blocks arrives at the other's barrier.
template <bool fenced>
__global__ void neighbour_kernel() {
  auto& barrier = *reinterpret_cast<hopper::Barrier*>(first_panel());
  if (threadIdx.x == 0) {
    hopper::init(barrier, 1);
    if (fenced) hopper::fence_init();
  }
  hopper::cluster_sync();
  if (threadIdx.x == 0) hopper::arrive_in_block(barrier, 1 - hopper::cluster_rank());
  hopper::wait(barrier, 0);
  hopper::cluster_sync();
}

TEST_CASE("barriers in shared memory: a fence between their init and the other block") {
  const Settings settings(hopper());
  const Shape shape{.grid = 2, .block = 32, .shared_bytes = 2048, .cluster = 2};
  launch(neighbour_kernel<true>, shape, nullptr);
  CHECK(contains(report_of(neighbour_kernel<false>, shape),
                 "mbarrier.arrive on a barrier without a fence.mbarrier_init after its init"));
}

TEST_CASE("tensor maps: what the driver refuses") {
  void* function = nullptr;
  ok(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                      cudaEnableDefault));
  const auto encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  const Device<float> data(1024);
  char* const bytes = reinterpret_cast<char*>(static_cast<float*>(data));
  alignas(16) static char of_host[40 * 16 * 4];
  struct Box {
    char* memory;
    std::size_t offset = 0;  // of the matrix in memory, in bytes
    cuuint64_t columns = 40, rows = 16, stride = 160;
    cuuint32_t width = 32, height = 16;
    std::size_t map_offset = 0;
  };
  const auto result = [&](const Box& box) {
    const cuuint64_t sizes[] = {box.columns, box.rows}, strides[] = {box.stride};
    const cuuint32_t boxes[] = {box.width, box.height}, ones[] = {1, 1};
    alignas(64) char maps[2 * sizeof(CUtensorMap)];
    return encode(reinterpret_cast<CUtensorMap*>(maps + box.map_offset),
                  CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, box.memory + box.offset, sizes, strides,
                  boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CHECK(result({bytes}) == CUDA_SUCCESS);
  CHECK(result({.memory = bytes, .offset = 16}) == CUDA_SUCCESS);
  CHECK(result({.memory = bytes, .offset = 8}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result({.memory = bytes, .stride = 168}) == CUDA_ERROR_INVALID_VALUE);  // no multiple of 16
  CHECK(result({.memory = bytes, .stride = 144}) == CUDA_ERROR_INVALID_VALUE);  // less than a row
  CHECK(result({.memory = bytes, .columns = 0}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result({.memory = bytes, .width = 33}) ==
        CUDA_ERROR_INVALID_VALUE);  // more than the swizzle's 128 bytes
  CHECK(result({.memory = bytes, .width = 3}) ==
        CUDA_ERROR_INVALID_VALUE);  // no multiple of 16 bytes
  CHECK(result({.memory = bytes, .height = 257}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result({.memory = bytes, .height = 256}) == CUDA_SUCCESS);
  CHECK(result({.memory = bytes, .rows = 26}) == CUDA_ERROR_INVALID_VALUE);  // beyond its end
  CHECK(result({.memory = of_host}) == CUDA_ERROR_INVALID_VALUE);
  CHECK(result({.memory = bytes, .map_offset = 16}) == CUDA_ERROR_INVALID_VALUE);
}

/// Warpgroup 0 gives registers; each thread of the others takes.
template <int given, int taken>
__global__ void registers_kernel() {
  if (threadIdx.x < 128)
    hopper::give_registers<given>();
  else
    hopper::take_registers<taken>();
}

TEST_CASE("registers: as many are taken as were given, of 65536 in a block") {
  const Shape shape{.grid = 1, .block = 384};
  for (const Config& config : every_order()) {
    const Settings settings(hopper(config));
    launch(registers_kernel<40, 232>, shape, nullptr);
    const std::string report = report_of(registers_kernel<48, 232>, shape);
    INFO(report);
    CHECK(contains(report, "deadlock in kernel "));
    CHECK(contains(report, " at setmaxnreg.inc for 64 more registers, and its block has 0 free"));
  }
  const Settings settings(hopper());
  CHECK(contains(report_of(registers_kernel<176, 232>, shape),
                 "setmaxnreg.dec to 176 registers of a thread that has 168"));
  CHECK(contains(report_of(registers_kernel<40, 160>, shape),
                 "setmaxnreg.inc to 160 registers of a thread that has 168"));
}

__global__ void partial_warp_kernel() {
  if (threadIdx.x % 2) hopper::give_registers<40>();
}

TEST_CASE("registers: a whole warp gives or takes them") {
  const Settings settings(hopper());
  CHECK(contains(report_of(partial_warp_kernel, {.grid = 1, .block = 128}),
                 "setmaxnreg.dec, and a lane has ended in kernel "));
}

TEST_CASE("barriers in shared memory: what never comes is a deadlock") {
  const Device<float> data(numbers()), out(2 * 64 * 32);
  for (const Config& config : every_order()) {
    const Settings settings(hopper(config));
    const std::string arrival =
        report_of(copy_kernel<Bug::no_announcement>, copy_shape, map_of(data, 70, 40), out);
    INFO(arrival);
    CHECK(contains(arrival, "deadlock in kernel "));
    CHECK(contains(arrival, "128 of 128 threads wait for arrivals that do not come"));
    CHECK(contains(arrival,
                   "wait at mbarrier.try_wait with parity 0 for a barrier whose phase (parity 0) "
                   "lacks 1 of 1 arrivals and -8192 bytes"));
    const std::string parity =
        report_of(copy_kernel<Bug::next_parity>, copy_shape, map_of(data, 70, 40), out);
    INFO(parity);
    CHECK(contains(parity,
                   "wait at mbarrier.try_wait with parity 1 for a barrier whose phase "
                   "(parity 1) lacks 1 of 1 arrivals and 0 bytes"));
  }
  const Settings settings(hopper());
  CHECK(contains(report_of(copy_kernel<Bug::twice>, copy_shape, map_of(data, 70, 40), out),
                 "mbarrier.arrive: more than the 1 arrivals that the barrier expects"));
}

TEST_CASE("barriers in shared memory: a parity is 0 or 1, and each is initialized once") {
  const Device<float> data(numbers()), out(2 * 64 * 32);
  const Settings settings(hopper());
  CHECK(contains(report_of(copy_kernel<Bug::parity_2>, copy_shape, map_of(data, 70, 40), out),
                 "mbarrier.try_wait with parity 2: it is 0 or 1 in kernel "));
  CHECK(contains(report_of(copy_kernel<Bug::init_twice>, copy_shape, map_of(data, 70, 40), out),
                 "mbarrier.init of a barrier that was initialized before in kernel "));
}

}  // namespace
}  // namespace simt::test
