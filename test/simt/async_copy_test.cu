/// cp.async: a copy is there when it was waited for, and not before. Where may lie what it copies,
/// the matrices of tensor cores, and in a build that watches whatever a kernel accesses.

#include <device_intrinsics.h>

#include <cmath>

#include "simt/support.h"

namespace simt::test {
namespace {

enum class Bug { none, no_wait, too_few_groups, no_barrier };

/// Each thread copies four floats of each of two rows, and adds what its neighbour copied.
template <Bug bug>
__global__ void copy_kernel(const float* rows, float* out) {
  auto* shared = dynamic_shared<float>();
  const unsigned i = threadIdx.x, n = blockDim.x, next = (i + 1) % n;
  for (unsigned row = 0; row < 2; ++row) {
    cp_async_16(shared + 4 * (row * n + i), rows + 4 * (row * n + i), true);
    cp_async_commit();
  }
  if (bug == Bug::too_few_groups) cp_async_wait<1>();
  if (bug != Bug::too_few_groups && bug != Bug::no_wait) cp_async_wait<0>();
  if (bug != Bug::no_barrier) __syncthreads();
  out[i] = shared[4 * next] + shared[4 * (n + next)];
}

TEST_CASE("cp.async: read without a wait, after too few groups, without a barrier: NaN") {
  constexpr int threads = 64;
  std::vector<float> values(threads * 8);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Device<float> rows(values), out(threads);
  const Shape shape{.grid = 1, .block = threads, .shared_bytes = threads * 32};
  const auto first = [&](auto* kernel) {
    launch(kernel, shape, nullptr, rows, out);
    return out.read();
  };
  for (const Config& config : every_order()) {
    const Settings settings(config);
    const std::vector<float> sums = first(copy_kernel<Bug::none>);
    for (std::size_t i = 0; i < threads; ++i)
      CHECK(sums[i] == static_cast<float>(8 * ((i + 1) % threads) + 4 * threads));
    CHECK(std::isnan(first(copy_kernel<Bug::no_wait>)[0]));
    CHECK(std::isnan(first(copy_kernel<Bug::too_few_groups>)[0]));
  }
  const Settings settings(in_order(Order::ascending));
  CHECK(std::isnan(first(copy_kernel<Bug::no_barrier>)[0]));
}

template <int to, int from>
__global__ void misaligned_kernel(const float* data) {
  cp_async_16(dynamic_shared<float>() + to, data + from, true);
  cp_async_commit();
  cp_async_wait<0>();
}

TEST_CASE("cp.async: 16 bytes lie at multiples of 16, on both sides") {
  const Device<float> data(32);
  const Shape shape{.grid = 1, .block = 1, .shared_bytes = 128};
  launch(misaligned_kernel<4, 8>, shape, nullptr, data);
  CHECK(contains(report_of(misaligned_kernel<1, 8>, shape, data),
                 "cp.async of 16 bytes at a shared address that is not a multiple of that"));
  CHECK(contains(report_of(misaligned_kernel<4, 2>, shape, data),
                 "cp.async of 16 bytes at a global address that is not a multiple of that"));
}

__global__ void swapped_kernel(float* data) {
  cp_async_16(data, dynamic_shared<float>(), true);
  cp_async_commit();
  cp_async_wait<0>();
}

__device__ float table[4] = {1, 2, 3, 4};

__global__ void any_source_kernel(const float* data, bool valid, float* out) {
  __shared__ __align__(16) float tile[4];
  cp_async_16(tile, data ? data : table, valid);
  cp_async_commit();
  cp_async_wait<0>();
  *out = tile[2];
}

TEST_CASE("cp.async: from global memory to shared memory") {
  const Device<float> data(32);
  alignas(16) float of_host[4] = {};
  const Shape shape{.grid = 1, .block = 1, .shared_bytes = 128};
  CHECK(contains(report_of(swapped_kernel, shape, data),
                 "cp.async of 16 bytes whose shared address is not in shared memory in kernel "));
  const float* host = of_host;
  CHECK(contains(report_of(any_source_kernel, shape, host, true, data),
                 "cp.async of 16 bytes whose global address is not in global memory in kernel "));
  launch(any_source_kernel, shape, nullptr, host, false, data);  // reads nothing
  launch(any_source_kernel, shape, nullptr, nullptr, true, data);
  CHECK(data.read()[0] == 3);
}

enum class Row { shared, global, lanes_ended };

template <Row row>
__global__ void matrices_kernel(float* data) {
  if (row == Row::lanes_ended && threadIdx.x >= 16) return;
  auto* shared = dynamic_shared<float>();
  std::uint32_t result[4];
  ldmatrix_x4(result, (row == Row::global ? data : shared) + 4 * threadIdx.x);
}

__global__ void mma_kernel() {
  if (threadIdx.x == 31) return;
  float d[4] = {};
  const std::uint32_t a[4] = {}, b[2] = {};
  mma_m16n8k8_tf32(d, a, b);
}

TEST_CASE("tensor cores: matrices from shared memory, by whole warps") {
  const Device<float> data(128);
  const Shape shape{.grid = 1, .block = 32, .shared_bytes = 512};
  launch(matrices_kernel<Row::shared>, shape, nullptr, data);
  CHECK(contains(report_of(matrices_kernel<Row::global>, shape, data),
                 "ldmatrix of a row that is not in shared memory in kernel "));
  CHECK(contains(report_of(matrices_kernel<Row::lanes_ended>, shape, data),
                 "ldmatrix, and a lane has ended in kernel "));
  CHECK(
      contains(report_of(mma_kernel, shape), "mma.m16n8k8.tf32, and a lane has ended in kernel "));
}

#ifdef LOCKSTEP_RACES  // the build watches

__global__ void reading_kernel(const int* in, int* out) { *out = *in; }

struct Argument {
  int values[64];
};
__device__ int numbers[2] = {3, 4};

__global__ void argument_kernel(Argument argument, int* out) {
  out[threadIdx.x] = argument.values[threadIdx.x + 1] + numbers[1];
}

TEST_CASE("races: a kernel reaches its device's memory, and what the host has given to devices") {
  const Device<int> in(std::vector<int>{1}), out(2);
  auto* of_host = new int[2]{1, 2};
  const int* data = of_host;
  const std::string report = found_in(reading_kernel, {}, data, out);
  INFO(report);
  CHECK(contains(report, "an access to 4 bytes of the host's memory"));
  CHECK(contains(found_in(reading_kernel, {}, in, of_host), "of the host's memory"));
  ok(cudaHostRegister(of_host, 2 * sizeof(int), cudaHostRegisterDefault));
  CHECK(found_in(reading_kernel, {}, data, out) == "");
  ok(cudaHostUnregister(of_host));
  delete[] of_host;
  CHECK(found_in(argument_kernel, {.block = 2}, Argument{{7, 8, 9}}, out) == "");

  ok(cudaSetDevice(5));
  {
    const Device<int> here(1);
    CHECK(
        contains(found_in(reading_kernel, {}, in, here), "another device's memory, without peer"));
    ok(cudaDeviceEnablePeerAccess(0, 0));
    CHECK(found_in(reading_kernel, {}, in, here) == "");
  }
  ok(cudaSetDevice(0));
}

__global__ void scalar_kernel(const char* data, int offset, unsigned* out) {
  *out = *reinterpret_cast<const unsigned*>(data + 2) + static_cast<unsigned>(offset);
}

TEST_CASE("races: a scalar at a constant offset is aligned, too") {
  const Device<char> data(std::vector<char>(16));
  const Device<unsigned> out(1);
  CHECK(found_in(scalar_kernel, {}, data + 2, 0, out) == "");
  CHECK(contains(found_in(scalar_kernel, {}, data, 0, out),
                 "an address that is not a multiple of 4 in kernel "));
}

#endif

}  // namespace
}  // namespace simt::test
