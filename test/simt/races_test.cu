/// Races between threads, and reads of memory that nobody wrote, in a build that watches accesses
/// (races/races.h). Each is found in five orders of threads; each repaired twin is not accused.

#include "simt/panels.h"

#ifdef LOCKSTEP_RACES  // the build watches

namespace simt::test {
namespace {

std::string line(int number) { return "races_test.cu:" + std::to_string(number) + "\n"; }

// ---- the threads of a block ---------------------------------------------------------------------

enum class Meet { nowhere, barrier, shuffle, warp, half_warps };

template <Meet meet>
__global__ void reverse_kernel(float* out) {
  __shared__ float tile[32];
  tile[threadIdx.x] = 1.0f;
  __syncthreads();  // so that the tile is written whatever the order
  tile[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (meet == Meet::barrier) __syncthreads();
  if (meet == Meet::shuffle) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  if (meet == Meet::warp) __syncwarp();
  if (meet == Meet::half_warps) __syncwarp(threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u);
  out[threadIdx.x] = tile[31 - threadIdx.x];
}
constexpr int reverse_write = __LINE__ - 7, reverse_read = __LINE__ - 2;

TEST_CASE("races: a barrier orders what is before and after it, and so does __syncwarp") {
  const Device<float> out(32);
  const Shape shape{.block = 32};
  for (auto* kernel : {reverse_kernel<Meet::nowhere>, reverse_kernel<Meet::shuffle>,
                       reverse_kernel<Meet::half_warps>}) {
    const std::string report = found_in(kernel, shape, out);
    INFO(report);
    CHECK(contains(report, "a race for 4 bytes of shared memory in kernel "));
    CHECK(contains(report, "reverse_kernel<"));
    CHECK(contains(report, line(reverse_write)));
    CHECK(contains(report, line(reverse_read)));
    CHECK(contains(report, "\n  and nothing orders the two"));
  }
  CHECK(found_in(reverse_kernel<Meet::barrier>, shape, out) == "");
  CHECK(found_in(reverse_kernel<Meet::warp>, shape, out) == "");
}

__global__ void two_barriers_kernel(float* out) {
  if (threadIdx.x % 2) {
    __syncthreads();
    out[threadIdx.x] = 1;
  } else {
    __syncthreads();
    out[threadIdx.x] = 2;
  }
}

TEST_CASE("races: two barriers at once, in two branches") {
  const Device<float> out(32);
  const std::string report = found_in(two_barriers_kernel, {.block = 32}, out);
  INFO(report);
  CHECK(contains(report, "two barriers at once in kernel "));
  CHECK(contains(report, " waits\n  at "));
}

/// Sums of neighbours, round after round, in one tile or in two that take turns.
template <bool second_barrier, int tiles>
__global__ void rounds_kernel(float* out) {
  __shared__ float tile[2][64];
  float sum = 0;
  for (int round = 0; round < 4; ++round) {
    float* mine = tile[round % tiles];
    mine[threadIdx.x] = sum + 1;
    __syncthreads();
    sum += mine[(threadIdx.x + 1) % 64];
    if (second_barrier) __syncthreads();
  }
  out[threadIdx.x] = sum;
}
constexpr int round_write = __LINE__ - 7, round_read = __LINE__ - 5;

TEST_CASE("races: what others still read must not be written again") {
  const Device<float> out(64);
  const std::string report = found_in(rounds_kernel<false, 1>, {.block = 64}, out);
  INFO(report);
  CHECK(contains(report, " writes\n"));
  CHECK(contains(report, " has read\n"));
  CHECK(contains(report, line(round_write)));
  CHECK(contains(report, line(round_read)));
  CHECK(found_in(rounds_kernel<true, 1>, {.block = 64}, out) == "");
  CHECK(found_in(rounds_kernel<false, 2>, {.block = 64}, out) == "");  // one barrier is between
}

template <class T>
__global__ void neighbours_kernel(T* data, bool wide) {
  data[threadIdx.x] = static_cast<T>(threadIdx.x);
  if (wide && threadIdx.x == 0) *reinterpret_cast<std::uint32_t*>(data) = 0;
}

TEST_CASE("races: of bytes side by side, none; of a word and a byte in it, one") {
  const Device<std::uint8_t> bytes(64);
  const Device<std::uint16_t> halves(64);
  CHECK(found_in(neighbours_kernel<std::uint8_t>, {.block = 64}, bytes, false) == "");
  CHECK(found_in(neighbours_kernel<std::uint16_t>, {.block = 64}, halves, false) == "");
  CHECK(contains(found_in(neighbours_kernel<std::uint8_t>, {.block = 64}, bytes, true), "a race"));
  CHECK(
      contains(found_in(neighbours_kernel<std::uint16_t>, {.block = 64}, halves, true), "a race"));
}

__global__ void wide_kernel(float* data, int first) {
  *reinterpret_cast<float4*>(data + first) = make_float4(1, 2, 3, 4);
}
constexpr int wide_write = __LINE__ - 2;

TEST_CASE("races: an access is aligned to its size") {
  const Device<float> data(8);
  CHECK(found_in(wide_kernel, {}, data, 4) == "");
  const std::string report = found_in(wide_kernel, {}, data, 2);
  INFO(report);
  CHECK(contains(report, "an address that is not a multiple of 16 in kernel "));
  CHECK(contains(report + "\n", line(wide_write)));
}

// ---- blocks, and atomics ------------------------------------------------------------------------

__global__ void block_sum_kernel(float* sums, int apart) {
  __syncthreads();
  if (threadIdx.x == 0) sums[blockIdx.x * apart] = 1.0f;
}

enum class Count { atomically, plainly, plainly_at_last, plainly_at_first };

__global__ void count_kernel(int* count, Count how) {
  int before = -1;
  if (how == Count::plainly_at_first && threadIdx.x == 0 && blockIdx.x == 0) *count = 0;
  if (how == Count::plainly && threadIdx.x == 3 && blockIdx.x == 1)
    *count = 7;
  else
    before = atomicAdd(count, 1);
  if (how == Count::plainly_at_last && before == 127) *count = 0;
}

__global__ void flag_kernel(int* flag, bool plainly) {
  if (plainly)
    *flag = 1;
  else
    *static_cast<volatile int*>(flag) = 1;
}

TEST_CASE("races: blocks know nothing of each other; atomics race with other accesses alone") {
  const Device<float> sums(8);
  const std::string report = found_in(block_sum_kernel, {.grid = 8, .block = 32}, sums, 0);
  INFO(report);
  CHECK(contains(report, "a race for 4 bytes of global memory"));
  CHECK(contains(report, " of block ("));
  CHECK(found_in(block_sum_kernel, {.grid = 8, .block = 32}, sums, 1) == "");
  const Device<int> count(std::vector<int>(1));
  const auto counted = [&](Count how) {
    ok(cudaMemset(count, 0, sizeof(int)));
    return found_in(count_kernel, {.grid = 4, .block = 32}, count, how);
  };
  CHECK(counted(Count::atomically) == "");
  CHECK(contains(counted(Count::plainly), "a race"));
  CHECK(contains(counted(Count::plainly_at_last), "a race"));
  CHECK(contains(counted(Count::plainly_at_first), "a race"));
  CHECK(found_in(flag_kernel, {.grid = 4, .block = 32}, count, false) == "");
  CHECK(contains(found_in(flag_kernel, {.grid = 4, .block = 32}, count, true), "a race"));
}

// ---- copies that nobody waits for here ----------------------------------------------------------

enum class Copy { right, no_barrier, too_early };

/// Four floats for each thread, twice into one place, read by the neighbour.
template <Copy copy>
__global__ void async_kernel(const float* rows, float* out) {
  auto* shared = dynamic_shared<float>();
  const unsigned i = threadIdx.x, n = blockDim.x;
  float sum = 0;
  for (unsigned row = 0; row < 2; ++row) {
    cp_async_16(shared + 4 * i, rows + 4 * (row * n + i), true);
    cp_async_commit();
    cp_async_wait<0>();
    if (copy != Copy::no_barrier) __syncthreads();
    sum += shared[4 * ((i + 1) % n)];
    if (copy != Copy::too_early) __syncthreads();
  }
  out[i] = sum;
}
constexpr int async_copy = __LINE__ - 9, async_read = __LINE__ - 5;

TEST_CASE("races: cp.async writes from its begin until its wait") {
  const Device<float> rows(std::vector<float>(64 * 8)), out(64);
  const Shape shape{.block = 64, .shared_bytes = 64 * 16};
  CHECK(found_in(async_kernel<Copy::right>, shape, rows, out) == "");
  const std::string early = found_in(async_kernel<Copy::too_early>, shape, rows, out);
  INFO(early);
  CHECK(contains(early, "a race"));
  CHECK(contains(early, line(async_copy)));
  CHECK(contains(early, line(async_read)));
  CHECK(found_in(async_kernel<Copy::no_barrier>, shape, rows, out) != "");
}

enum class Panel { right, one_tells, one_waits, refilled, other_barrier, no_barrier };

/// Thread 0 has a panel copied, and another one into the same place; all threads add both up.
template <Panel panel>
__global__ void panel_kernel(const __grid_constant__ CUtensorMap map, float* out) {
  unsigned char* place = first_panel();
  auto* barriers = reinterpret_cast<hopper::Barrier*>(place + panel_bytes);
  hopper::Barrier &full = barriers[0], &empty = barriers[1], &other = barriers[2];
  if (threadIdx.x == 0) {
    hopper::init(full, 1);
    hopper::init(other, 1);
    hopper::init(empty, static_cast<int>(blockDim.x));
    hopper::fence_init();
  }
  if (panel != Panel::no_barrier) __syncthreads();
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    if (threadIdx.x == 0) {
      if (round == 1 && panel != Panel::refilled) hopper::wait(empty, 0);
      hopper::load_panel(place, map, 32 * round, 0, full);
      hopper::arrive_expecting(full, panel_bytes);
      if (panel == Panel::other_barrier && round == 0) {
        hopper::load_panel(place + 2 * panel_bytes, map, 0, 0, other);
        hopper::arrive_expecting(other, panel_bytes);
      }
    }
    if (panel == Panel::other_barrier && threadIdx.x > 0 && round == 0) hopper::wait(other, 0);
    if (threadIdx.x == 0 || panel == Panel::right || panel == Panel::refilled ||
        panel == Panel::no_barrier)
      hopper::wait(full, round);
    if (panel == Panel::one_tells) __syncthreads();  // thread 0 has waited for all
    sum += reinterpret_cast<const float*>(place)[threadIdx.x];
    if (round == 0) hopper::arrive_in_block(empty, 0);
  }
  out[threadIdx.x] = sum;
}

TEST_CASE("races: the copy engine writes for all that wait for its barrier, and for no others") {
  const Device<float> matrix(std::vector<float>(64 * 64)), out(64);
  const CUtensorMap map = map_of(matrix, 64, 64);
  const Shape shape{.block = 64, .shared_bytes = 3 * panel_bytes + 1024};
  const Settings settings(hopper());
  CHECK(found_in(panel_kernel<Panel::right>, shape, map, out) == "");
  CHECK(found_in(panel_kernel<Panel::one_tells>, shape, map, out) == "");
  for (auto* kernel : {panel_kernel<Panel::one_waits>, panel_kernel<Panel::refilled>,
                       panel_kernel<Panel::other_barrier>}) {
    const std::string report = found_in(kernel, shape, map, out);
    INFO(report);
    CHECK(contains(report, "a race"));
    CHECK(contains(report, "the copy engine"));
  }
  // Where another thread is the first, the barrier has not even begun.
  CHECK(contains(found_in(panel_kernel<Panel::no_barrier>, shape, map, out), "a race for 8 bytes"));
}

// ---- memory that nobody wrote -------------------------------------------------------------------

__global__ void shared_kernel(float* out, int written) {
  __shared__ float tile[32];
  if (threadIdx.x < static_cast<unsigned>(written)) tile[threadIdx.x] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[31 - threadIdx.x];
}
constexpr int shared_read = __LINE__ - 2;

__global__ void shared_count_kernel(int* out, bool begun) {
  __shared__ int count;
  if (begun && threadIdx.x == 0) count = 0;
  __syncthreads();
  out[threadIdx.x] = atomicAdd(&count, 1);
}

__global__ void double_kernel(const float* in, float* out) {
  out[threadIdx.x] = 2 * in[threadIdx.x];
}

TEST_CASE("races: memory that nobody has written is not read") {
  const Device<float> out(32), in(33);
  CHECK(found_in(shared_kernel, {.block = 32}, out, 32) == "");
  const std::string report = found_in(shared_kernel, {.block = 32}, out, 31);
  INFO(report);
  CHECK(contains(report, "a read of shared memory that no thread has written: 4 bytes in kernel "));
  CHECK(contains(report, "by thread (0, 0, 0) of block (0, 0, 0)"));
  CHECK(contains(report + "\n", line(shared_read)));

  const Device<int> counts(32);
  CHECK(found_in(shared_count_kernel, {.block = 32}, counts, true) == "");
  CHECK(contains(found_in(shared_count_kernel, {.block = 32}, counts, false), "a read of shared"));

  CHECK(contains(found_in(double_kernel, {.block = 32}, in, out),
                 "a read of global memory that nobody has written: 4 bytes in kernel "));
  const std::vector<float> values(31, 1.0f);
  ok(cudaMemcpy(in, values.data(), 31 * sizeof(float), cudaMemcpyHostToDevice));
  CHECK(contains(found_in(double_kernel, {.block = 32}, in, out), "by thread (31, 0, 0)"));
  ok(cudaMemset(in, 0xff, 32 * sizeof(float)));  // written, with the very bytes of new memory
  CHECK(found_in(double_kernel, {.block = 32}, in, out) == "");
  CHECK(found_in(double_kernel, {.block = 32}, out, in) == "");  // by a kernel
}

__global__ void copy_kernel(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x]; }

TEST_CASE("races: what the host, a stream or a copy has written is written, whatever it is") {
  const Device<int> out(1);
  int* pinned = nullptr;
  ok(cudaMallocHost(&pinned, sizeof(int)));
  *pinned = -1;
  CHECK(found_in(copy_kernel, {}, pinned, out) == "");
  const Device<int> in(2);
  ok(cudaMemcpyAsync(in, pinned, sizeof(int), cudaMemcpyHostToDevice, nullptr));
  CHECK(found_in(copy_kernel, {}, in, out) == "");
  REQUIRE(cuStreamWriteValue32(nullptr, reinterpret_cast<CUdeviceptr>(in + 1), 0xffffffffu,
                               CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS);
  CHECK(found_in(copy_kernel, {}, in + 1, out) == "");
  ok(cudaFreeHost(pinned));
}

TEST_CASE("races: memory that the pool gives again is new") {
  const Device<float> out(32);
  for (int round = 0; round < 2; ++round) {
    float* data = nullptr;
    ok(cudaMallocAsync(&data, 32 * sizeof(float), nullptr));
    CHECK(contains(found_in(double_kernel, {.block = 32}, data, out), "nobody has written"));
    CHECK(found_in(shared_kernel, {.block = 32}, data, 32) == "");
    CHECK(found_in(double_kernel, {.block = 32}, data, out) == "");
    ok(cudaFreeAsync(data, nullptr));
  }
}

TEST_CASE("races: a program may ask not to be told") {
  const Device<float> out(32);
  Config config = simt::config();
  config.races = false;
  const Settings settings(config);
  ok(try_launch(reverse_kernel<Meet::nowhere>, {.block = 32}, nullptr, out));
}

}  // namespace
}  // namespace simt::test

#endif
