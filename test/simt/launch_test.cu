/// Launches: what is refused, and with which of CUDA's errors.

#include <device_intrinsics.h>

#include "simt/support.h"

namespace simt::test {
namespace {

__global__ void nothing_kernel() {}

__global__ void large_kernel(int* out) {
  __shared__ int tile[1024];
  tile[threadIdx.x] = static_cast<int>(threadIdx.x);
  __syncthreads();
  out[threadIdx.x] = tile[1023 - threadIdx.x];
}

TEST_CASE("shapes that no device can run") {
  const auto of = [](dim3 grid, dim3 block) {
    const cudaError_t error = try_launch(nothing_kernel, {grid, block}, nullptr);
    CHECK(cudaGetLastError() == error);
    return error;
  };
  CHECK(of(1, 1024) == cudaSuccess);
  CHECK(of(1, 1025) == cudaErrorInvalidConfiguration);
  CHECK(of(1, {1024, 2}) == cudaErrorInvalidConfiguration);
  CHECK(of(1, {1, 1, 65}) == cudaErrorInvalidConfiguration);
  CHECK(of(0, 1) == cudaErrorInvalidConfiguration);
  CHECK(of(1, 0) == cudaErrorInvalidConfiguration);
  CHECK(of({1, 65536}, 1) == cudaErrorInvalidConfiguration);
  CHECK(of({1, 65535}, 1) == cudaSuccess);
  CHECK(of({0x80000000u, 1}, 1) == cudaErrorInvalidConfiguration);
}

TEST_CASE("shared memory: 48 KB, more if asked for, and no more than there is") {
  const auto with = [](auto* kernel, std::size_t bytes, const auto&... arguments) {
    return try_launch(kernel, {.grid = 1, .block = 1, .shared_bytes = bytes}, nullptr,
                      arguments...);
  };
  CHECK(with(nothing_kernel, 48 << 10) == cudaSuccess);
  CHECK(with(nothing_kernel, (48 << 10) + 1) == cudaErrorInvalidValue);
  ok(cudaFuncSetAttribute(nothing_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
  CHECK(with(nothing_kernel, 100 << 10) == cudaSuccess);
  CHECK(with(nothing_kernel, (100 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(nothing_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449) ==
        cudaErrorInvalidValue);
  ok(cudaFuncSetAttribute(nothing_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 232448));
  ok(cudaSetDevice(1));  // another device has its own
  CHECK(with(nothing_kernel, 48 << 10) == cudaSuccess);
  CHECK(with(nothing_kernel, (48 << 10) + 1) == cudaErrorInvalidValue);
  ok(cudaSetDevice(0));
  // Static memory counts: large_kernel has 4 KB.
  const Device<int> out(1024);
  CHECK(with(large_kernel, 44 << 10, out) == cudaSuccess);
  CHECK(with(large_kernel, (44 << 10) + 1, out) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(large_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             232448 - 4095) == cudaErrorInvalidValue);
  int blocks = 0;
  ok(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, large_kernel, 256, 0));
  CHECK(blocks == 8);
  ok(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, large_kernel, 32, 40 << 10));
  CHECK(blocks == 5);
  (void)cudaGetLastError();
}

__global__ void __launch_bounds__(32) bounded_kernel(int* out) { out[threadIdx.x] = 1; }

TEST_CASE("launch bounds and registers are not known here") {
  const Device<int> out(64);
  cudaFuncAttributes attributes{};
  ok(cudaFuncGetAttributes(&attributes, bounded_kernel));
  CHECK(attributes.maxThreadsPerBlock == 1024);
  CHECK(attributes.numRegs == 0);
  launch(bounded_kernel, {.block = 32}, nullptr, out);
  launch(bounded_kernel, {.block = 64}, nullptr, out);  // a GPU would refuse it
  CHECK(out.read() == std::vector<int>(64, 1));
}

TEST_CASE("1024 threads meet") {
  for (const Config& config : every_order()) {
    const Settings settings(config);
    const Device<int> out(1024);
    launch(large_kernel, {.block = 1024}, nullptr, out);
    const std::vector<int> values = out.read();
    for (int t = 0; t < 1024; ++t) CHECK(values[t] == 1023 - t);
  }
}

TEST_CASE("handles, attributes and devices that do not fit") {
  Stream stream;
  ok(cudaSetDevice(1));
  CHECK(try_launch(nothing_kernel, {}, stream) == cudaErrorInvalidResourceHandle);
  Event of_device_1;
  CHECK(cudaEventRecord(of_device_1, stream) == cudaErrorInvalidResourceHandle);
  ok(cudaStreamWaitEvent(stream, of_device_1));  // to wait for another device is fine
  ok(cudaSetDevice(0));
  CHECK(try_launch(nothing_kernel, {}, stream) == cudaSuccess);
  CHECK(try_launch(nothing_kernel, {}, reinterpret_cast<cudaStream_t>(&stream)) ==
        cudaErrorInvalidResourceHandle);
  CHECK(cudaLaunchKernelEx(nullptr, nothing_kernel) == cudaErrorInvalidValue);
  void (*no_kernel)() = nullptr;
  CHECK(try_launch(no_kernel, {}, nullptr) == cudaErrorInvalidDeviceFunction);
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cudaLaunchConfig_t config{};
  config.attrs = &cooperative;
  config.numAttrs = 1;
  CHECK(cudaLaunchKernelEx(&config, nothing_kernel) == cudaErrorNotSupported);
  (void)cudaGetLastError();
}

}  // namespace
}  // namespace simt::test
