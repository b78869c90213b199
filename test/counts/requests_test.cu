/// What the simulator counts of small kernels (simt/counters/counters.h), against what one counts
/// by hand. Each kernel is one warp that makes one request of a kind, unless it says otherwise.

#include <device_intrinsics.h>

#include "lockstep/simt/counters/counters.h"
#include "simt/panels.h"

namespace simt::test {
namespace {

using counters::Class;
using counters::Launch;
using counters::Sum;

template <class... Formal, class... Actual>
Launch counted(void (*kernel)(Formal...), const Shape& shape, const Actual&... arguments) {
  counters::start();
  launch(kernel, shape, nullptr, arguments...);
  ok(cudaDeviceSynchronize());
  const std::vector<Launch> launches = counters::stop();
  REQUIRE(launches.size() == 1);
  return launches[0];
}

constexpr Shape warp{.block = 32};

// ---- global memory ------------------------------------------------------------------------------

/// Thread i reads element first + i * stride and writes its neighbour's place of the same shape.
template <class T, int stride, int first = 0>
__global__ void copy_kernel(const T* from, T* to) {
  const int i = first + static_cast<int>(threadIdx.x) * stride;
  to[i] = from[i];
}

struct Expected {
  std::uint64_t requests, bytes, sectors, fewest;
};

void check_copy(const Launch& launch, const Expected& expected) {
  for (const Class what : {Class::global_load, Class::global_store}) {
    const Sum& sum = launch.of(what);
    CHECK(sum.requests == expected.requests);
    CHECK(sum.bytes == expected.bytes);
    CHECK(sum.sectors == expected.sectors);
    CHECK(sum.fewest_sectors == expected.fewest);
  }
  CHECK(launch.read == expected.sectors * 32);
  CHECK(launch.written == expected.sectors * 32);
}

TEST_CASE("counters: sectors by stride, by width and by alignment") {
  const Device<float> a(1056), b(1056);
  check_copy(counted(copy_kernel<float, 1>, warp, a, b), {1, 128, 4, 4});
  check_copy(counted(copy_kernel<float, 2>, warp, a, b), {1, 128, 8, 4});
  check_copy(counted(copy_kernel<float, 32>, warp, a, b), {1, 128, 32, 4});
  check_copy(counted(copy_kernel<float, 1, 1>, warp, a, b), {1, 128, 5, 4});
  check_copy(counted(copy_kernel<float, -1, 31>, warp, a, b), {1, 128, 4, 4});
  check_copy(counted(copy_kernel<unsigned char, 1>, warp, reinterpret_cast<unsigned char*>(+a),
                     reinterpret_cast<unsigned char*>(+b)),
             {1, 32, 1, 1});
  check_copy(counted(copy_kernel<double, 1>, warp, reinterpret_cast<double*>(+a),
                     reinterpret_cast<double*>(+b)),
             {1, 256, 8, 8});
  check_copy(counted(copy_kernel<float4, 1>, warp, reinterpret_cast<float4*>(+a),
                     reinterpret_cast<float4*>(+b)),
             {1, 512, 16, 16});
}

/// As vectors, which it takes apart and puts together.
__global__ void add_vectors_kernel(const float4* a, const float4* b, float4* out) {
  const float4 x = a[threadIdx.x], y = b[threadIdx.x];
  out[threadIdx.x] = make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

TEST_CASE("counters: a vector that is taken apart is loaded and stored as one") {
  const Device<float4> a(32), b(32), out(32);
  const Launch launch = counted(add_vectors_kernel, warp, a, b, out);
  CHECK(launch.of(Class::global_load).requests == 2);
  CHECK(launch.of(Class::global_load).sectors == 32);
  CHECK(launch.of(Class::global_store).requests == 1);
  CHECK(launch.of(Class::global_store).sectors == 16);
}

__global__ void broadcast_kernel(const float* from, float* to) { to[threadIdx.x] = from[0]; }

/// Half of the warp loads, then the other half from far away.
__global__ void divergent_kernel(const float* from, float* to) {
  float x = 1;
  if (threadIdx.x % 2 == 0) x = from[threadIdx.x];
  to[threadIdx.x] = x;
}

/// Each thread goes round its own number of times: 1 to 32.
__global__ void triangle_kernel(const float* from, float* to) {
  float sum = 0;
  for (unsigned i = 0; i <= threadIdx.x; ++i) sum += from[32 * i + threadIdx.x];
  to[threadIdx.x] = sum;
}

TEST_CASE("counters: one address for all, branches, loops of different lengths") {
  const Device<float> a(1024), b(1024);
  const Sum broadcast = counted(broadcast_kernel, warp, a, b).of(Class::global_load);
  CHECK(broadcast.requests == 1);
  CHECK(broadcast.bytes == 128);
  CHECK(broadcast.sectors == 1);
  CHECK(broadcast.fewest_sectors == 1);
  const Sum half = counted(divergent_kernel, warp, a, b).of(Class::global_load);
  CHECK(half.requests == 1);
  CHECK(half.bytes == 64);
  CHECK(half.sectors == 4);
  CHECK(half.fewest_sectors == 2);
  const Sum triangle = counted(triangle_kernel, warp, a, b).of(Class::global_load);
  CHECK(triangle.requests == 32);
  CHECK(triangle.bytes == 4 * 33 * 16);
  CHECK(triangle.sectors == 8 * (1 + 2 + 3 + 4));
}

__global__ void each_kernel(const float* from, float* to) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = from[i];
}

TEST_CASE("counters: partial warps, several blocks, in every order of threads") {
  const Device<float> a(144), b(144);
  for (const Config& config : every_order()) {
    const Settings settings(config);
    const Launch launch = counted(each_kernel, {.grid = 3, .block = 48}, a, b);
    const Sum& loads = launch.of(Class::global_load);
    CHECK(loads.requests == 6);
    CHECK(loads.bytes == 4 * 144);
    CHECK(loads.sectors == 18);
    CHECK(launch.read == 4 * 144);
    CHECK(launch.grid == std::array<unsigned, 3>{3, 1, 1});
    CHECK(launch.block == std::array<unsigned, 3>{48, 1, 1});
    CHECK(contains(launch.kernel, "each_kernel"));
  }
}

TEST_CASE("counters: launches are told apart, and none is counted outside of start and stop") {
  const Device<float> a(64), b(64);
  counters::start();
  launch(each_kernel, warp, nullptr, a, b);
  launch(each_kernel, {.block = 64}, nullptr, a, b);
  ok(cudaDeviceSynchronize());
  const std::vector<Launch> launches = counters::stop();
  REQUIRE(launches.size() == 2);
  CHECK(launches[0].of(Class::global_load).requests == 1);
  CHECK(launches[1].of(Class::global_load).requests == 2);
  launch(each_kernel, warp, nullptr, a, b);
  ok(cudaDeviceSynchronize());
  CHECK(counters::stop().empty());
}

/// All add to one counter, and each to one of its own.
__global__ void atomics_kernel(int* counters) {
  __shared__ int in_block;
  if (threadIdx.x == 0) in_block = 0;
  __syncthreads();
  atomicAdd(&in_block, 1);
  atomicAdd(counters + 8 * threadIdx.x, 1);
}

TEST_CASE("counters: atomics") {
  const Device<int> data(std::vector<int>(256, 0));
  const Launch launch = counted(atomics_kernel, warp, data);
  CHECK(launch.of(Class::global_atomic).requests == 1);
  CHECK(launch.of(Class::global_atomic).sectors == 32);
  CHECK(launch.of(Class::global_load).requests == 0);
  CHECK(launch.of(Class::shared_atomic).requests == 1);
  CHECK(launch.of(Class::shared_store).requests == 1);
  CHECK(launch.read == 1024);
  CHECK(launch.written == 1024);
}

// ---- shared memory ------------------------------------------------------------------------------

/// Thread i writes element i * stride of a tile, and reads the next thread's.
template <class T, int stride>
__global__ void tile_kernel(T* out) {
  T* tile = dynamic_shared<T>();
  tile[threadIdx.x * stride] = T{};
  __syncthreads();
  out[threadIdx.x] = tile[(threadIdx.x + 1) % 32 * stride];
}

template <class T, int stride>
void check_tile(std::uint64_t wavefronts, std::uint64_t fewest) {
  CAPTURE(stride);
  const Device<T> out(32);
  const Launch launch =
      counted(tile_kernel<T, stride>, {.block = 32, .shared_bytes = 32 * stride * sizeof(T)}, out);
  for (const Class what : {Class::shared_load, Class::shared_store}) {
    CHECK(launch.of(what).requests == 1);
    CHECK(launch.of(what).wavefronts == wavefronts);
    CHECK(launch.of(what).fewest_wavefronts == fewest);
    CHECK(launch.of(what).sectors == 0);
  }
  CHECK(launch.barriers() == 1);
}

TEST_CASE("counters: bank conflicts by stride and width") {
  check_tile<float, 1>(1, 1);
  check_tile<float, 2>(2, 1);
  check_tile<float, 32>(32, 1);
  check_tile<float, 33>(1, 1);  // a padded column
  check_tile<unsigned char, 1>(1, 1);
  check_tile<double, 1>(2, 2);
  check_tile<double, 2>(4, 2);
  check_tile<float4, 1>(4, 4);
  check_tile<float4, 2>(8, 4);
}

__global__ void shared_broadcast_kernel(float* out) {
  __shared__ float tile[64];
  tile[threadIdx.x] = 1;
  tile[32 + threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[5] + tile[threadIdx.x / 16 * 32];  // of one bank, two words
}

TEST_CASE("counters: a word that all read is read once; two words of one bank take turns") {
  const Device<float> out(32);
  const Sum loads = counted(shared_broadcast_kernel, warp, out).of(Class::shared_load);
  CHECK(loads.requests == 2);
  CHECK(loads.wavefronts == 3);
}

/// Rows of 16 bytes, `pitch` bytes apart.
template <int pitch>
__global__ void matrices_kernel(std::uint32_t* out) {
  auto* bytes = dynamic_shared<unsigned char>();
  for (int i = static_cast<int>(threadIdx.x); i < 8 * pitch; i += 32)
    reinterpret_cast<std::uint32_t*>(bytes)[i] = 0;
  __syncthreads();
  std::uint32_t registers[4];
  ldmatrix_x4(registers, bytes + threadIdx.x * pitch);
  out[threadIdx.x] = registers[0];
}

template <int pitch>
void check_matrices(std::uint64_t wavefronts) {
  CAPTURE(pitch);
  const Device<std::uint32_t> out(32);
  const Launch launch =
      counted(matrices_kernel<pitch>, {.block = 32, .shared_bytes = 32 * pitch}, out);
  const Sum& loads = launch.of(Class::shared_load);
  CHECK(loads.requests == 1);
  CHECK(loads.bytes == 512);
  CHECK(loads.wavefronts == wavefronts);
  CHECK(loads.fewest_wavefronts == 4);
  CHECK(launch.instructions.at("ldmatrix") == 1);
}

TEST_CASE("counters: ldmatrix, dense, padded and with 8 rows in the same banks") {
  check_matrices<16>(4);
  check_matrices<80>(4);
  check_matrices<128>(32);
}

__global__ void shuffles_kernel(float* out) {
  float x = 1;
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  if (__any_sync(0xffffffffu, x > 0)) out[threadIdx.x] = x;
}

TEST_CASE("counters: shuffles are counted by warps") {
  const Device<float> out(64);
  const Launch launch = counted(shuffles_kernel, {.block = 64}, out);
  CHECK(launch.shuffles() == 10);
  CHECK(launch.instructions.at("__any_sync") == 2);
}

// ---- copies -------------------------------------------------------------------------------------

template <int width>
__global__ void copies_kernel(const unsigned char* from, float* out) {
  auto* bytes = dynamic_shared<unsigned char>();
  const unsigned at = threadIdx.x * width;
  if constexpr (width == 16)
    cp_async_16(bytes + at, from + at, threadIdx.x < 16);  // the others get zeros
  else
    cp_async_4(bytes + at, from + at, threadIdx.x < 16);
  cp_async_commit();
  cp_async_wait<0>();
  __syncthreads();
  out[threadIdx.x] = reinterpret_cast<float*>(bytes)[threadIdx.x];
}

TEST_CASE("counters: cp.async by width") {
  const Device<unsigned char> from(512);
  const Device<float> out(32);
  const Launch wide = counted(copies_kernel<16>, {.block = 32, .shared_bytes = 512}, from, out);
  CHECK(wide.of(Class::copy_load).requests == 1);
  CHECK(wide.of(Class::copy_load).bytes == 256);
  CHECK(wide.of(Class::copy_load).sectors == 8);
  CHECK(wide.of(Class::copy_store).bytes == 512);
  CHECK(wide.of(Class::copy_store).wavefronts == 4);
  CHECK(wide.of(Class::global_load).requests == 0);
  CHECK(wide.of(Class::shared_store).requests == 0);
  CHECK(wide.copied_16 == 512);
  CHECK(wide.copied_4 == 0);
  CHECK(wide.read == 256);
  const Launch narrow = counted(copies_kernel<4>, {.block = 32, .shared_bytes = 512}, from, out);
  CHECK(narrow.of(Class::copy_load).sectors == 2);
  CHECK(narrow.copied_4 == 128);
  CHECK(narrow.copied_16 == 0);
}

/// 64 rows of 32 floats, of which the matrix has 40 rows.
__global__ void box_kernel(const __grid_constant__ CUtensorMap map, float* out) {
  unsigned char* panel = first_panel();
  auto& full = *reinterpret_cast<hopper::Barrier*>(panel + panel_bytes);
  if (threadIdx.x == 0) {
    hopper::init(full, 1);
    hopper::fence_init();
    hopper::load_panel(panel, map, 0, 0, full);
    hopper::arrive_expecting(full, panel_bytes);
  }
  __syncthreads();
  hopper::wait(full, 0);
  out[threadIdx.x] = reinterpret_cast<float*>(panel)[threadIdx.x];
}

TEST_CASE("counters: the copy engine") {
  const Settings settings(hopper());
  const Device<float> data(40 * 32), out(32);
  const Launch launch = counted(box_kernel, {.block = 32, .shared_bytes = panel_bytes + 1032},
                                map_of(data, 40, 32), out);
  CHECK(launch.box_bytes == 40 * 128);
  CHECK(launch.read == 40 * 128);
  CHECK(launch.of(Class::global_load).requests == 0);
}

// ---- places -------------------------------------------------------------------------------------

constexpr int strided_line = __LINE__ + 3;
__global__ void places_kernel(const float* from, float* to) {
  const float x = from[threadIdx.x];
  to[8 * threadIdx.x] = x;
}

TEST_CASE("counters: a figure has its line") {
  const Device<float> a(32), b(256);
  const Launch launch = counted(places_kernel, warp, a, b);
  REQUIRE(launch.lines.size() == 2);
  for (const counters::Line& line : launch.lines)
    if (line.what == Class::global_store) {
      CHECK(line.sum.sectors == 32);
      CHECK(contains(counters::place_of(line.caller) + "\n",
                     "requests_test.cu:" + std::to_string(strided_line) + "\n"));
    }
}

// ---- the first requests, lane by lane -----------------------------------------------------------

/// Warp 1 alone copies, 20 times, a row that is 128 bytes further; odd lanes only.
__global__ void rows_kernel(const float* from, float* to) {
  if (threadIdx.x < 32 || threadIdx.x % 2 == 0) return;
  for (int row = 0; row < 20; ++row) to[threadIdx.x + 32 * row] = from[64 + 2 * threadIdx.x];
}

TEST_CASE("counters: the first requests of the first warp that makes any are kept") {
  const Device<float> a(256), b(1024);
  const Launch launch = counted(rows_kernel, {.grid = 2, .block = 96}, a, b);
  std::array<int, 2> rows{};  // that were loaded, stored
  for (const counters::Traced& traced : launch.traced) {
    const bool stored = traced.what == Class::global_store;
    const int row = rows[stored]++;
    CHECK(traced.warp == 1);
    CHECK(traced.bytes == 4);
    for (int lane = 0; lane < 32; ++lane) {
      const int thread = 32 + lane;
      const int offset = stored ? 4 * (thread + 32 * row) : 4 * (64 + 2 * thread);
      CHECK(traced.offsets[lane] == (lane % 2 != 0 ? offset : -1));
    }
  }
  CHECK(rows[1] == 16);
  REQUIRE(launch.traced.size() >= 17);
  CHECK(launch.traced.front().memory + launch.traced.back().memory == 1);
}

TEST_CASE("counters: the first box of the copy engine, chunk by chunk") {
  const Settings settings(hopper());
  const Device<float> data(40 * 32), out(32);
  const Launch launch = counted(box_kernel, {.block = 32, .shared_bytes = panel_bytes + 1032},
                                map_of(data, 40, 32), out);
  REQUIRE(launch.first_chunks.size() == 64);
  for (int i = 0; i < 64; ++i) {  // chunk c of row r goes to place c xor r (PTX ISA 9.0, 5.5.7)
    CHECK(launch.first_chunks[i].from == 16 * i);
    CHECK(launch.first_chunks[i].to == i / 8 * 128 + (i % 8 ^ i / 8) * 16);
  }
}

}  // namespace
}  // namespace simt::test
