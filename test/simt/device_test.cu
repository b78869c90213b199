/// What CUDA C++ offers to a kernel: indices, barriers, instructions of a warp, atomics, shared
/// memory. Expected values follow from the Programming Guide's definitions.

#include <device_intrinsics.h>

#include <cmath>
#include <numeric>

#include "simt/support.h"

namespace simt::test {
namespace {

__global__ void indices_kernel(unsigned* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  atomicAdd(&out[block * threads + thread], 1 + threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z +
                                                1000 * blockIdx.x + 10000 * blockIdx.y +
                                                100000 * blockIdx.z);
}

TEST_CASE("every thread of every block runs once, and knows where it is") {
  for (const Config& config : every_order()) {
    const Settings settings(config);
    const Device<unsigned> out(std::vector<unsigned>(3 * 2 * 2 * 5 * 3 * 2));
    launch(indices_kernel, {.grid = {3, 2, 2}, .block = {5, 3, 2}}, nullptr, out);
    const std::vector<unsigned> values = out.read();
    std::size_t i = 0;
    for (unsigned bz = 0; bz < 2; ++bz)
      for (unsigned by = 0; by < 2; ++by)
        for (unsigned bx = 0; bx < 3; ++bx)
          for (unsigned z = 0; z < 2; ++z)
            for (unsigned y = 0; y < 3; ++y)
              for (unsigned x = 0; x < 5; ++x)
                CHECK(values[i++] ==
                      1 + x + 10 * y + 100 * z + 1000 * bx + 10000 * by + 100000 * bz);
  }
}

__global__ void order_kernel(int* next, int* order) { order[atomicAdd(next, 1)] = threadIdx.x; }

TEST_CASE("the order of threads is the one that was asked for") {
  const auto run = [](const Config& config) {
    const Settings settings(config);
    const Device<int> next(std::vector<int>{0}), order(100);
    launch(order_kernel, {.block = 100}, nullptr, next, order);
    return order.read();
  };
  std::vector<int> up(100);
  std::iota(up.begin(), up.end(), 0);
  CHECK(run(in_order(Order::ascending)) == up);
  CHECK(run(in_order(Order::descending)) == std::vector<int>(up.rbegin(), up.rend()));
  const std::vector<int> random = run(in_order(Order::random, 1));
  CHECK(random != up);
  CHECK(random == run(in_order(Order::random, 1)));
  CHECK(random != run(in_order(Order::random, 2)));
}

__global__ void block_order_kernel(int* next, int* order) {
  order[atomicAdd(next, 1)] = static_cast<int>(blockIdx.x + 5 * blockIdx.y);
}

TEST_CASE("blocks too, each of them once") {
  const auto run = [](const Config& config) {
    const Settings settings(config);
    const Device<int> next(std::vector<int>{0}), order(35);
    launch(block_order_kernel, {.grid = {5, 7}}, nullptr, next, order);
    return order.read();
  };
  std::vector<int> up(35);
  std::iota(up.begin(), up.end(), 0);
  CHECK(run(in_order(Order::ascending)) == up);
  CHECK(run(in_order(Order::descending)) == std::vector<int>(up.rbegin(), up.rend()));
  bool differs = false;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    std::vector<int> random = run(in_order(Order::random, seed));
    differs |= random != up;
    std::sort(random.begin(), random.end());
    CHECK(random == up);
  }
  CHECK(differs);
}

__global__ void barriers_kernel(int* out, int odd) {
  const int t = static_cast<int>(threadIdx.x);
  out[t] = __syncthreads_count(t % 3 == 0);
  __syncthreads();
  if (__syncthreads_and(t >= 0)) out[t] += 1000;
  if (__syncthreads_and(t != odd)) out[t] += 10000;
  if (__syncthreads_or(t == odd)) out[t] += 100000;
  if (__syncthreads_or(t < 0)) out[t] += 1000000;
}

TEST_CASE("barriers count") {
  for (const Config& config : every_order()) {
    const Settings settings(config);
    const Device<int> out(77);
    launch(barriers_kernel, {.block = 77}, nullptr, out, 41);
    for (const int value : out.read()) CHECK(value == 101026);  // 26 multiples of 3 below 77
  }
}

template <class T>
__global__ void shuffles_kernel(T* out, int width) {
  const int lane = static_cast<int>(threadIdx.x);
  const T mine = static_cast<T>(lane * 3 + 1);
  out[lane] = __shfl_sync(0xffffffffu, mine, lane * 5 + 2, width);
  out[32 + lane] = __shfl_up_sync(0xffffffffu, mine, 3, width);
  out[64 + lane] = __shfl_down_sync(0xffffffffu, mine, 3, width);
  out[96 + lane] = __shfl_xor_sync(0xffffffffu, mine, 5, width);
}

TEST_CASE_TEMPLATE("shuffles, in groups of every width", T, int, unsigned, long long, float, double,
                   short) {
  for (const Config& config : every_order())
    for (int width = 1; width <= 32; width *= 2) {
      const Settings settings(config);
      const Device<T> out(128);
      launch(shuffles_kernel<T>, {.block = 32}, nullptr, out, width);
      const std::vector<T> values = out.read();
      for (int lane = 0; lane < 32; ++lane) {
        const int first = lane / width * width, rank = lane % width;
        const auto of = [](int source) { return static_cast<T>(source * 3 + 1); };
        CHECK(values[lane] == of(first + (lane * 5 + 2) % width));
        CHECK(values[32 + lane] == of(rank < 3 ? lane : lane - 3));
        CHECK(values[64 + lane] == of(rank + 3 >= width ? lane : lane + 3));
        CHECK(values[96 + lane] == of((lane ^ 5) >= first + width ? lane : lane ^ 5));
      }
    }
}

__global__ void partial_kernel(unsigned* out) {
  const unsigned t = threadIdx.x;
  if (t >= 40) return;                // lanes 8 and up of warp 1 end
  const unsigned full = 0xffffffffu;  // may name lanes that have ended or never were
  out[t] = __ballot_sync(full, t % 2);
  out[64 + t] = static_cast<unsigned>(__all_sync(full, t < 40));
  out[128 + t] = static_cast<unsigned>(__any_sync(full, t == 3));
  if (t % 2 == 0)
    out[192 + t] = __ballot_sync(0x55555555u, t >= 4);
  else
    out[192 + t] = __ballot_sync(0xaaaaaaaau, t < 4);
  __syncwarp();
  out[256 + t] = __float_as_uint(__shfl_sync(full, 1.0f, 20));
}

TEST_CASE("votes: masks, and lanes that have ended") {
  for (const Config& config : every_order()) {
    const Settings settings(config);
    const Device<unsigned> out(320);
    launch(partial_kernel, {.block = 45}, nullptr, out);
    const auto values = out.read();
    for (unsigned t = 0; t < 40; ++t) {
      CHECK(values[t] == (t < 32 ? 0xaaaaaaaau : 0xaau));
      CHECK(values[64 + t] == 1);
      CHECK(values[128 + t] == (t < 32));
      const unsigned even = t < 32 ? 0x55555550u : 0x55u, odd = t < 32 ? 0xau : 0u;
      CHECK(values[192 + t] == (t % 2 ? odd : even));
      // Lane 20 of warp 1 has ended: what is read from it is a NaN.
      CHECK(values[256 + t] == (t < 32 ? __float_as_uint(1.0f) : 0xffffffffu));
    }
  }
}

struct Pair {
  int value, lane;
};

__global__ void collective_kernel(int* out) {
  const Pair mine{static_cast<int>(threadIdx.x) * 2, static_cast<int>(threadIdx.x % 32)};
  out[threadIdx.x] = warp_collective<Pair, int>("sum below", 0xffffffffu, mine,
                                                [](const std::array<Pair, 32>& lanes, int lane) {
                                                  int sum = 0;
                                                  for (int other = 0; other < lane; ++other)
                                                    sum += lanes[other].value * lanes[other].lane;
                                                  return sum;
                                                });
}

TEST_CASE("an instruction of one's own for a whole warp") {
  const Device<int> out(64);
  launch(collective_kernel, {.block = 64}, nullptr, out);
  const auto values = out.read();
  for (int t = 0; t < 64; ++t) {
    int sum = 0;
    for (int other = 0; other < t % 32; ++other) sum += (t / 32 * 32 + other) * 2 * other;
    CHECK(values[t] == sum);
  }
}

__global__ void atomics_kernel(int* i, unsigned* u, unsigned long long* l, float* f, double* d) {
  const int t = static_cast<int>(threadIdx.x);
  atomicAdd(&i[0], t);
  atomicMax(&i[1], t);
  atomicMin(&i[2], -t);
  atomicSub(&i[3], t);
  atomicOr(&u[0], 1u << (t % 32));
  atomicAnd(&u[1], ~(1u << (t % 32)));
  atomicXor(&u[2], static_cast<unsigned>(t));
  atomicInc(&u[3], 6);
  atomicAdd(&l[0], 1ull << 40);
  unsigned long long seen = l[1], assumed;  // the usual loop for an addition of one's own
  do {
    assumed = seen;
    seen = atomicCAS(&l[1], assumed, assumed + 2);
  } while (seen != assumed);
  atomicAdd(f, 0.5f);
  atomicAdd(d, 0.25);
  __threadfence();
}

TEST_CASE("atomics") {
  const Device<int> i(std::vector<int>{0, 0, 0, 0});
  const Device<unsigned> u(std::vector<unsigned>{0, ~0u, 0, 0});
  const Device<unsigned long long> l(std::vector<unsigned long long>{0, 0});
  const Device<float> f(std::vector<float>{1});
  const Device<double> d(std::vector<double>{1});
  launch(atomics_kernel, {.block = 100}, nullptr, i, u, l, f, d);
  CHECK(i.read() == std::vector<int>{4950, 99, -99, -4950});
  unsigned all = 0;
  for (unsigned t = 0; t < 100; ++t) all ^= t;
  CHECK(u.read() == std::vector<unsigned>{~0u, 0, all, 100 % 7});
  CHECK(l.read() == std::vector<unsigned long long>{100ull << 40, 200});
  CHECK(f.read()[0] == 51);
  CHECK(d.read()[0] == 26);
}

template <class T>
__global__ void shared_kernel(T* out, int* aligned) {
  __shared__ T tile[3][7];
  __shared__ __align__(16) T other[5];
  T* dynamic = dynamic_shared<T>();
  for (int i = 0; i < 7; ++i) out[i] = tile[1][i];
  out[7] = other[4];
  out[8] = dynamic[0];
  *aligned = reinterpret_cast<std::uintptr_t>(dynamic) % 128 == 0 &&
             reinterpret_cast<std::uintptr_t>(other) % 16 == 0;
  tile[1][2] = other[4] = dynamic[0] = T(1);  // what a block leaves is not there for the next
}

TEST_CASE_TEMPLATE("shared memory is NaN before each block", T, float, double) {
  const Device<T> out(9);
  const Device<int> aligned(1);
  launch(shared_kernel<T>, {.grid = 3, .block = 1, .shared_bytes = sizeof(T)}, nullptr, out,
         aligned);
  for (const T value : out.read()) CHECK(std::isnan(value));
  CHECK(aligned.read()[0] == 1);
  cudaFuncAttributes attributes{};
  ok(cudaFuncGetAttributes(&attributes, shared_kernel<T>));
  CHECK(attributes.sharedSizeBytes == 26 * sizeof(T));
}

TEST_CASE("device memory is NaN when it is new") {
  for (const double value : Device<double>(33).read()) CHECK(std::isnan(value));
  Stream stream;
  float* data = nullptr;
  ok(cudaMallocAsync(&data, 400, stream));
  std::vector<float> values(100);
  ok(cudaMemcpyAsync(values.data(), data, 400, cudaMemcpyDeviceToHost, stream));
  for (const float value : values) CHECK(std::isnan(value));
  ok(cudaFreeAsync(data, stream));
}

__global__ void parameters_kernel(int a, int b, int* out) {
  a += static_cast<int>(threadIdx.x);  // each thread has its own
  b *= a;
  out[threadIdx.x] = b;
}

TEST_CASE("arguments are converted, and copied for each thread") {
  const Device<int> out(3);
  const short five = 5;
  launch(parameters_kernel, {.block = 3}, nullptr, five, 2L, out);
  CHECK(out.read() == std::vector<int>{10, 12, 14});
}

__global__ void alias_kernel(float* out, const float* in) {
  const uint4 bits = *reinterpret_cast<const uint4*>(in);
  *reinterpret_cast<uint4*>(out) = {bits.w, bits.z, bits.y, bits.x};
  *reinterpret_cast<float2*>(out + 4) = make_float2(in[1], out[0]);
}

TEST_CASE("vectors of any type read any array") {
  const Device<float> in(std::vector<float>{1, 2, 3, 4}), out(6);
  launch(alias_kernel, {}, nullptr, out, in);
  CHECK(out.read() == std::vector<float>{4, 3, 2, 1, 2, 4});
}

TEST_CASE("functions on bits, against loops") {
  std::uint64_t state = 1;
  for (int round = 0; round < 1000; ++round) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto x = static_cast<unsigned>(state >> 32) >> (round % 33 == 32 ? 31 : round % 33);
    int ones = 0, first = 0, leading = 32;
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit)
      if (x >> bit & 1u) {
        ++ones;
        if (!first) first = bit + 1;
        leading = 31 - bit;
        reversed |= 1u << (31 - bit);
      }
    CHECK(__popc(x) == ones);
    CHECK(__ffs(static_cast<int>(x)) == first);
    CHECK(__clz(static_cast<int>(x)) == leading);
    CHECK(__brev(x) == reversed);
    CHECK(__umulhi(x, 0xd2511f53u) ==
          static_cast<unsigned>((std::uint64_t{x} * 0xd2511f53u) >> 32));
    CHECK(__float_as_uint(__uint_as_float(x)) == x);
  }
  CHECK(__ffs(0) == 0);
  CHECK(__clz(0) == 32);
  CHECK(__umul64hi(1ull << 63, 6) == 3);
}

}  // namespace
}  // namespace simt::test
