/// The bugs that the simulator is there to find, planted. Each is found, and its repaired twin is
/// not accused.

#include <device_intrinsics.h>

#include <cmath>
#include <csignal>

#include "simt/support.h"

namespace simt::test {
namespace {

// ---- found by AddressSanitizer, in a child that dies of it --------------------------------------

__global__ void global_overrun_kernel(float* data, unsigned n) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) data[i] = 1.0f;
}
constexpr int global_overrun_line = __LINE__ - 2;

// UndefinedBehaviorSanitizer sees this one too, and would be earlier.
__global__ __attribute__((no_sanitize("undefined"))) void static_overrun_kernel(float* out) {
  __shared__ float tile[32];
  tile[threadIdx.x + 1] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}
constexpr int static_overrun_line = __LINE__ - 4;

__global__ void dynamic_overrun_kernel(float* out) {
  float* tile = dynamic_shared<float>();
  tile[threadIdx.x + 1] = 1.0f;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}
constexpr int dynamic_overrun_line = __LINE__ - 4;

__global__ void fill_kernel(float* data) { data[threadIdx.x] = 1.0f; }
constexpr int fill_line = __LINE__ - 1;

TEST_CASE("planted: global overrun" * doctest::skip()) {
  const Device<float> data(100);
  (void)try_launch(global_overrun_kernel, {.grid = 2, .block = 64}, nullptr, data, 100u);
}

TEST_CASE("planted: static overrun" * doctest::skip()) {
  const Device<float> data(32);
  (void)try_launch(static_overrun_kernel, {.block = 32}, nullptr, data);
}

TEST_CASE("planted: dynamic overrun" * doctest::skip()) {
  const Device<float> data(32);
  (void)try_launch(dynamic_overrun_kernel, {.block = 32, .shared_bytes = 128}, nullptr, data);
}

TEST_CASE("planted: use after free" * doctest::skip()) {
  float* data = nullptr;
  ok(cudaMallocAsync(&data, 128, nullptr));
  ok(cudaFreeAsync(data, nullptr));
  (void)try_launch(fill_kernel, {.block = 32}, nullptr, data);
}

TEST_CASE("planted: graph memory after its free" * doctest::skip()) {
  Stream stream;
  float* data = nullptr;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  ok(cudaMallocAsync(&data, 128, stream));
  ok(cudaFreeAsync(data, stream));
  launch(fill_kernel, {.block = 32}, stream, data);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&exec, graph));
  (void)cudaGraphLaunch(exec, stream);
}

TEST_CASE("AddressSanitizer names the kernel's line") {
  if (!with_address_sanitizer) {
    MESSAGE("skipped: not built with AddressSanitizer");
    return;
  }
  const auto check = [](const std::string& name, const std::string& kind, int line) {
    const Ended child = run_child("planted: " + name);
    INFO(child.output);
    CHECK(!child.succeeded);
    CHECK(contains(child.output, kind));
    CHECK(contains(child.output, "planted_bugs_test.cu:" + std::to_string(line)));
  };
  check("global overrun", "use-after-poison", global_overrun_line);
  check("static overrun", "global-buffer-overflow", static_overrun_line);
  check("dynamic overrun", "heap-buffer-overflow", dynamic_overrun_line);
  check("use after free", "heap-use-after-free", fill_line);
  check("graph memory after its free", "use-after-poison", fill_line);
}

// ---- reported by the simulator ------------------------------------------------------------------

__global__ void divergent_kernel(int* out) {
  if (threadIdx.x < 7) __syncthreads();
  out[threadIdx.x] = 1;
}

TEST_CASE("a barrier that some threads never reach") {
  const Device<int> out(256);
  for (const Config& config : every_order()) {
    const Settings settings(config);
    const std::string report =
        report_of(divergent_kernel, {.grid = {2, 3}, .block = {16, 16}}, out);
    INFO(report);
    CHECK(contains(report, "divergent barrier in kernel "));
    CHECK(contains(report, "divergent_kernel(int*), block ("));
    CHECK(contains(report, "threads wait at a barrier of the block"));
    CHECK(contains(report, "\n  thread (0, 0, 0) and "));
    CHECK(contains(report, "wait at __syncthreads"));
    if (config.order == Order::ascending) CHECK(contains(report, "block (0, 0, 0): 112 of 256"));
  }
}

__global__ void mixed_kernel(int* out) {
  if (threadIdx.x % 2)
    out[threadIdx.x] = __syncthreads_or(1);
  else
    __syncthreads();
}

TEST_CASE("two kinds of barrier at once") {
  const Device<int> out(4);
  const std::string report = report_of(mixed_kernel, {.block = 4}, out);
  INFO(report);
  CHECK(contains(report,
                 "divergent barrier: __syncthreads_or, while other threads of the block wait "
                 "at __syncthreads in kernel "));
  CHECK(contains(report, "thread (1, 0, 0)"));
}

__global__ void stuck_shuffle_kernel(int* out) {
  if (threadIdx.x < 16)
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);  // names lanes that go elsewhere
  else
    __syncthreads();
}

TEST_CASE("a shuffle that waits for lanes at a barrier") {
  const Device<int> out(64);
  const std::string report = report_of(stuck_shuffle_kernel, {.block = 64}, out);
  INFO(report);
  CHECK(contains(report,
                 "48 of 64 threads wait at a barrier of the block, 16 at instructions of a "
                 "warp"));
  CHECK(contains(report,
                 "\n  thread (0, 0, 0) and 15 more wait at __shfl_sync with mask 0xffffffff "
                 "for lanes 0xffff0000 of warp 0"));
  CHECK(contains(report, "\n  thread (16, 0, 0) and 47 more wait at __syncthreads"));
}

__global__ void two_masks_kernel(int* out) {
  const unsigned mask = threadIdx.x < 16 ? 0x0001ffffu : 0xffff8000u;  // 15 and 16 are in both
  out[threadIdx.x] = static_cast<int>(__ballot_sync(mask, 1));
}

TEST_CASE("lanes that name each other under different masks") {
  const Device<int> out(32);
  const std::string report = report_of(two_masks_kernel, {.block = 32}, out);
  INFO(report);
  CHECK(contains(report, "deadlock in kernel "));
  CHECK(contains(report, "32 of 32 threads wait for lanes that do not come"));
  CHECK(contains(report, "__ballot_sync with mask 0x0001ffff for lanes 0x00010000 of warp 0"));
}

__global__ void foreign_mask_kernel(int* out) { out[threadIdx.x] = __any_sync(0x0000ffffu, 1); }
__global__ void bad_width_kernel(int* out) {
  out[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1, 1, 12);
}

TEST_CASE("a mask without the caller, and a width that is none") {
  const Device<int> out(32);
  const std::string mask = report_of(foreign_mask_kernel, {.block = 32}, out);
  CHECK(
      contains(mask, "__any_sync with mask 0x0000ffff, which lacks the caller's lane in kernel "));
  CHECK(contains(mask, "thread (16, 0, 0)"));
  const std::string width = report_of(bad_width_kernel, {.block = 32}, out);
  CHECK(contains(width, "__shfl_down_sync with width 12, which is not a power of two up to 32"));
}

TEST_CASE("in late mode the error comes with the call that waits, and nothing runs after it") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const Settings settings(late(seed));
    const Device<int> out(std::vector<int>(16));
    Stream stream;
    (void)try_launch(mixed_kernel, {.block = 4}, stream, out);
    (void)cudaMemsetAsync(out, 0xff, 64, stream);
    CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
    reset();
    ok(cudaStreamSynchronize(stream));
    CHECK(out.read()[15] == 0);
  }
}

TEST_CASE("a broken device: calls of another device that use what is its fail") {
  const Device<int> data(8);
  Event event, never(cudaEventDefault);
  Stream stream;
  const Settings settings(config());
  ok(cudaEventRecord(event, stream));
  CHECK(try_launch(mixed_kernel, {.block = 4}, stream, data) == cudaErrorLaunchFailure);
  ok(cudaSetDevice(1));
  {
    Stream other;
    const Device<int> there(8);
    std::vector<int> host(8);
    CHECK(cudaEventQuery(event) == cudaErrorLaunchFailure);
    CHECK(cudaEventQuery(never) == cudaErrorLaunchFailure);
    CHECK(cudaEventSynchronize(event) == cudaErrorLaunchFailure);
    CHECK(cudaStreamWaitEvent(other, event) == cudaErrorLaunchFailure);
    CHECK(cudaMemcpyAsync(there, data, 32, cudaMemcpyDefault, other) == cudaErrorLaunchFailure);
    CHECK(cudaMemcpyAsync(data, there, 32, cudaMemcpyDefault, other) == cudaErrorLaunchFailure);
    CHECK(cudaMemcpy(host.data(), data, 32, cudaMemcpyDefault) == cudaErrorLaunchFailure);
    CHECK(cudaMemsetAsync(data, 0, 32, other) == cudaErrorLaunchFailure);
    ok(cudaStreamSynchronize(other));  // its own device is sound
  }
  ok(cudaSetDevice(0));
}

// ---- the process ends -----------------------------------------------------------------------

__global__ void null_kernel(int* out, int* nothing) {
  if (threadIdx.x == 5) out = nothing;
  *out = 1;
}

TEST_CASE("planted: a null pointer" * doctest::skip()) {
  (void)std::signal(SIGSEGV, SIG_DFL);  // not doctest's
  int* nothing = nullptr;
  const Device<int> out(1);
  (void)try_launch(null_kernel, {.grid = 2, .block = 8}, nullptr, out, nothing);
}

TEST_CASE("a null pointer: where the kernel was when it ended the process") {
  const Ended child = run_child("planted: a null pointer");
  INFO(child.output);
  CHECK(!child.succeeded);
  if (!with_address_sanitizer) {
    CHECK(contains(child.output, "an access to no memory in kernel "));
    CHECK(contains(child.output, "null_kernel(int*, int*), block (0, 0, 0), thread (5, 0, 0)\n"));
  }
}

// ---- shown by a result --------------------------------------------------------------------------

template <bool with_barrier>
__global__ void reverse_kernel(float* out) {
  __shared__ float tile[64];
  tile[threadIdx.x] = static_cast<float>(threadIdx.x);
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = tile[63 - threadIdx.x];
}

template <bool with_barrier>
__global__ void shift_kernel(float* data) {  // in place: a race between neighbours
  const float left = threadIdx.x == 0 ? 0.0f : data[threadIdx.x - 1];
  if (with_barrier) __syncthreads();
  data[threadIdx.x] = left;
}

TEST_CASE("a missing barrier: orders differ, and agree once it is there") {
  const auto results = [](auto* kernel) {
    std::vector<std::vector<float>> all;
    for (const Config& config : every_order()) {
      const Settings settings(config);
      std::vector<float> start(64);
      for (int i = 0; i < 64; ++i) start[i] = static_cast<float>(i + 1);
      const Device<float> data(start);
      launch(kernel, {.block = 64}, nullptr, data);
      all.push_back(data.read());
    }
    return all;
  };
  const auto agree = [](const std::vector<std::vector<float>>& all) {
    for (const auto& one : all)
      if (one != all[0]) return false;  // a NaN differs from itself
    return true;
  };
  CHECK(!agree(results(reverse_kernel<false>)));
  CHECK(agree(results(reverse_kernel<true>)));
  CHECK(results(reverse_kernel<true>)[0][0] == 63);
  CHECK(!agree(results(shift_kernel<false>)));
  CHECK(agree(results(shift_kernel<true>)));
}

__global__ void uninitialized_kernel(float* out, int written) {
  __shared__ float tile[32];
  if (threadIdx.x < static_cast<unsigned>(written)) tile[threadIdx.x] = 1.0f;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < 32; ++i) sum += tile[i];
  out[threadIdx.x] = sum;
}

TEST_CASE("a read of what nobody wrote is NaN") {
  const Device<float> out(32);
  launch(uninitialized_kernel, {.block = 32}, nullptr, out, 31);
  for (const float value : out.read()) CHECK(std::isnan(value));
  launch(uninitialized_kernel, {.block = 32}, nullptr, out, 32);
  for (const float value : out.read()) CHECK(value == 32);
}

}  // namespace
}  // namespace simt::test
