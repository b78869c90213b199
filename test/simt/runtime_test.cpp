/// Memory, devices and errors of the runtime API. Codes are CUDA's.

#include <cstring>
#include <thread>

#include "simt/support.h"

namespace simt::test {
namespace {

TEST_CASE("errors have CUDA's numbers and names, and are remembered once per thread") {
  CHECK(static_cast<int>(cudaErrorInvalidValue) == 1);
  CHECK(static_cast<int>(cudaErrorLaunchFailure) == 719);
  CHECK(std::string(cudaGetErrorName(cudaErrorStreamCaptureUnjoined)) ==
        "cudaErrorStreamCaptureUnjoined");
  CHECK(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
  CHECK(std::string(cudaGetErrorName(static_cast<cudaError_t>(12345))) ==
        "unrecognized error code");

  CHECK(cudaMalloc(static_cast<void**>(nullptr), 4) == cudaErrorInvalidValue);
  std::thread([] { CHECK(cudaPeekAtLastError() == cudaSuccess); }).join();
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("each host thread has a current device") {
  int count = 0, device = -1;
  ok(cudaGetDeviceCount(&count));
  CHECK(count == config().devices);
  REQUIRE(count >= 2);
  ok(cudaSetDevice(1));
  std::thread([] {
    int other = -1;
    ok(cudaGetDevice(&other));
    CHECK(other == 0);
  }).join();
  ok(cudaGetDevice(&device));
  CHECK(device == 1);
  ok(cudaSetDevice(0));
  CHECK(cudaSetDevice(count) == cudaErrorInvalidDevice);
  CHECK(cudaSetDevice(-1) == cudaErrorInvalidDevice);
  cudaDeviceProp properties{};
  ok(cudaGetDeviceProperties(&properties, 0));
  CHECK(std::string(properties.name) == "simulated GPU");
  CHECK(properties.major == 8);
  int value = 0;
  ok(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  CHECK(value == 232448);
  ok(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
  CHECK(value == 4);
  CHECK(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(999), 0) ==
        cudaErrorInvalidValue);
  (void)cudaGetLastError();
}

TEST_CASE("memory: sizes, limits, and wrong pointers") {
  Config small = config();
  small.device_bytes = 1000;
  const Settings settings(small);
  std::size_t free_bytes = 0, total = 0;
  ok(cudaMemGetInfo(&free_bytes, &total));
  CHECK(total == 1000);
  CHECK(free_bytes == 1000);
  char *a = nullptr, *b = nullptr;
  ok(cudaMalloc(&a, 600));
  CHECK(reinterpret_cast<std::uintptr_t>(a) % 256 == 0);
  CHECK(cudaMalloc(&b, 401) == cudaErrorMemoryAllocation);
  CHECK(b == nullptr);
  ok(cudaMalloc(&b, 400));
  ok(cudaMemGetInfo(&free_bytes, &total));
  CHECK(free_bytes == 0);
  ok(cudaSetDevice(1));  // another device has its own
  char* c = nullptr;
  ok(cudaMalloc(&c, 1000));
  ok(cudaFree(c));
  ok(cudaSetDevice(0));
  CHECK(cudaFree(a + 1) == cudaErrorInvalidValue);
  CHECK(cudaFreeHost(a) == cudaErrorInvalidValue);
  ok(cudaFree(a));
  CHECK(cudaFree(a) == cudaErrorInvalidValue);
  ok(cudaFreeAsync(b, nullptr));
  CHECK(cudaFreeAsync(b, nullptr) == cudaErrorInvalidValue);
  ok(cudaFree(nullptr));
  void* nothing = &total;
  ok(cudaMalloc(&nothing, 0));
  CHECK(nothing == nullptr);
  ok(cudaMemGetInfo(&free_bytes, &total));
  CHECK(free_bytes == 1000);
}

TEST_CASE("pointers know where they point") {
  const Device<int> device(10);
  int* pinned = nullptr;
  ok(cudaMallocHost(&pinned, 40));
  int pageable[10];
  cudaPointerAttributes attributes{};
  ok(cudaPointerGetAttributes(&attributes, device + 9));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  CHECK(attributes.device == 0);
  CHECK(attributes.devicePointer == device + 9);
  ok(cudaPointerGetAttributes(&attributes, pinned));
  CHECK(attributes.type == cudaMemoryTypeHost);
  ok(cudaPointerGetAttributes(&attributes, pageable));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  ok(cudaHostRegister(pageable, sizeof pageable, cudaHostRegisterDefault));
  CHECK(cudaHostRegister(pageable, 4, 0) == cudaErrorHostMemoryAlreadyRegistered);
  ok(cudaPointerGetAttributes(&attributes, pageable + 1));
  CHECK(attributes.type == cudaMemoryTypeHost);
  ok(cudaHostUnregister(pageable));
  CHECK(cudaHostUnregister(pageable) == cudaErrorHostMemoryNotRegistered);
  int* mapped = nullptr;
  ok(cudaHostGetDevicePointer(&mapped, pinned, 0));
  CHECK(mapped == pinned);
  ok(cudaFreeHost(pinned));
}

TEST_CASE("handles: what is destroyed cannot be used; what was made of it can") {
  cudaStream_t stream = nullptr, gone = nullptr;
  cudaEvent_t event = nullptr;
  ok(cudaStreamCreate(&stream));
  ok(cudaStreamCreate(&gone));
  ok(cudaEventCreate(&event));
  ok(cudaEventRecord(event, gone));
  ok(cudaStreamDestroy(gone));
  ok(cudaStreamWaitEvent(stream, event));  // the record is the event's
  ok(cudaEventSynchronize(event));
  CHECK(cudaEventRecord(event, gone) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamQuery(gone) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamDestroy(gone) == cudaErrorInvalidResourceHandle);
  ok(cudaEventDestroy(event));
  CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventQuery(event) == cudaErrorInvalidResourceHandle);
  CHECK(cudaStreamWaitEvent(stream, event) == cudaErrorInvalidResourceHandle);

  const Device<int> data(std::vector<int>{1});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  ok(cudaMemsetAsync(data, 0, 4, stream));
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&exec, graph));
  ok(cudaGraphDestroy(graph));
  ok(cudaGraphLaunch(exec, stream));
  ok(cudaStreamSynchronize(stream));
  CHECK(data.read()[0] == 0);
  cudaGraphExec_t another = nullptr;
  CHECK(cudaGraphInstantiate(&another, graph) == cudaErrorInvalidValue);
  ok(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphLaunch(exec, stream) == cudaErrorInvalidValue);
  ok(cudaStreamDestroy(stream));
  (void)cudaGetLastError();
}

TEST_CASE("copies: every direction, and wrong ones") {
  const std::vector<int> values{1, 2, 3, 4, 5};
  const Device<int> a(values), b(5);
  std::vector<int> back(5);
  int* pinned = nullptr;
  ok(cudaMallocHost(&pinned, 20));
  ok(cudaMemcpy(b, a, 20, cudaMemcpyDeviceToDevice));
  ok(cudaMemcpy(pinned, b, 20, cudaMemcpyDefault));
  ok(cudaMemcpy(back.data(), pinned, 20, cudaMemcpyHostToHost));
  CHECK(back == values);
  ok(cudaMemset(b, 0xff, 8));
  CHECK(b.read() == std::vector<int>{-1, -1, 3, 4, 5});
  ok(cudaMemcpyAsync(b + 1, a, 8, cudaMemcpyDefault));
  CHECK(b.read() == std::vector<int>{-1, 1, 2, 4, 5});

  CHECK(cudaMemcpy(b, a, 20, static_cast<cudaMemcpyKind>(7)) == cudaErrorInvalidMemcpyDirection);
  CHECK(cudaMemcpy(b, a, 20, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(back.data(), a, 20, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(b, back.data(), 24, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(b + 2, back.data(), 16, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(nullptr, a, 4, cudaMemcpyDefault) == cudaErrorInvalidValue);
  CHECK(cudaMemset(back.data(), 0, 4) == cudaErrorInvalidValue);
  ok(cudaMemcpy(b, nullptr, 0, cudaMemcpyHostToDevice));
  ok(cudaFreeHost(pinned));

  ok(cudaSetDevice(1));
  {
    const Device<int> there(5);
    ok(cudaMemcpyPeerAsync(there, 1, a, 0, 20));
    CHECK(there.read() == values);
    CHECK(cudaMemcpyPeerAsync(there, 0, a, 1, 20) == cudaErrorInvalidValue);
    CHECK(cudaMemcpyPeerAsync(there, 1, a, 99, 20) == cudaErrorInvalidDevice);
  }
  ok(cudaSetDevice(0));
  (void)cudaGetLastError();
}

TEST_CASE("the pool keeps its settings") {
  cudaMemPool_t pool = nullptr;
  ok(cudaDeviceGetDefaultMemPool(&pool, 1));
  std::uint64_t threshold = ~std::uint64_t{0}, got = 0;
  ok(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  ok(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &got));
  CHECK(got == threshold);
  CHECK(cudaMemPoolSetAttribute(nullptr, cudaMemPoolAttrReleaseThreshold, &threshold) ==
        cudaErrorInvalidValue);
  int* data = nullptr;
  ok(cudaMallocAsync(&data, 100, nullptr));
  ok(cudaDeviceGetDefaultMemPool(&pool, 0));
  ok(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &got));
  CHECK(got >= 100);
  ok(cudaFreeAsync(data, nullptr));
  (void)cudaGetLastError();
}

TEST_CASE("settings from the environment") {
  const auto with = [](const char* name, const char* value) {
    setenv(name, value, 1);
    std::string result;
    try {
      const Config read = config_from_environment();
      result = std::to_string(static_cast<int>(read.order)) + " " +
               std::to_string(read.order_seed) + " " +
               std::to_string(static_cast<int>(read.streams)) + " " +
               std::to_string(read.stream_seed) + " " + std::to_string(read.devices);
    } catch (const std::invalid_argument& error) {
      result = error.what();
    }
    unsetenv(name);
    return result;
  };
  const char* variables[] = {"LOCKSTEP_SIM_ORDER",       "LOCKSTEP_SIM_STREAMS",
                             "LOCKSTEP_SIM_DEVICES",     "LOCKSTEP_SIM_MEMORY",
                             "LOCKSTEP_SIM_CAPABILITY",  "LOCKSTEP_SIM_NCCL_FAIL",
                             "LOCKSTEP_SIM_PEER_ACCESS", "LOCKSTEP_SIM_RACES"};
  std::vector<std::pair<const char*, std::string>> before;
  for (const char* name : variables)
    if (const char* value = getenv(name)) {
      before.emplace_back(name, value);
      unsetenv(name);
    }
  CHECK(with("LOCKSTEP_SIM_ORDER", "ascending") == "0 0 0 0 8");
  CHECK(with("LOCKSTEP_SIM_ORDER", "descending") == "1 0 0 0 8");
  CHECK(with("LOCKSTEP_SIM_ORDER", "random:17") == "2 17 0 0 8");
  CHECK(with("LOCKSTEP_SIM_STREAMS", "late:3") == "0 0 1 3 8");
  CHECK(with("LOCKSTEP_SIM_DEVICES", "2") == "0 0 0 0 2");
  CHECK(with("LOCKSTEP_SIM_ORDER", "random") ==
        "LOCKSTEP_SIM_ORDER is 'random': it must be ascending, descending or random:SEED");
  CHECK(with("LOCKSTEP_SIM_ORDER", "random:x") ==
        "LOCKSTEP_SIM_ORDER is 'random:x': it must be ascending, descending or random:SEED");
  CHECK(with("LOCKSTEP_SIM_STREAMS", "late") ==
        "LOCKSTEP_SIM_STREAMS is 'late': it must be eager or late:SEED");
  CHECK(with("LOCKSTEP_SIM_DEVICES", "0") ==
        "LOCKSTEP_SIM_DEVICES is '0': it must be a number from 1 to 1024");
  CHECK(with("LOCKSTEP_SIM_MEMORY", "1G") ==
        "LOCKSTEP_SIM_MEMORY is '1G': it must be a number of bytes");
  CHECK(with("LOCKSTEP_SIM_CAPABILITY", "90") ==
        "LOCKSTEP_SIM_CAPABILITY is '90': it must be a compute capability, as 8.0 or 9.0");
  CHECK(with("LOCKSTEP_SIM_CAPABILITY", "9.0") == "0 0 0 0 8");
  CHECK(with("LOCKSTEP_SIM_RACES", "no") == "0 0 0 0 8");
  CHECK(with("LOCKSTEP_SIM_RACES", "maybe") ==
        "LOCKSTEP_SIM_RACES is 'maybe': it must be yes, in a build with LOCKSTEP_RACES, or no");
  CHECK(with("LOCKSTEP_SIM_PEER_ACCESS", "maybe") ==
        "LOCKSTEP_SIM_PEER_ACCESS is 'maybe': it must be yes, no or lost");
  CHECK(with("LOCKSTEP_SIM_NCCL_FAIL", "0:3") == "0 0 0 0 8");
  for (const char* bad_value : {"3", "-1:3", "1:0", "1:3x"})
    CHECK(with("LOCKSTEP_SIM_NCCL_FAIL", bad_value) == "LOCKSTEP_SIM_NCCL_FAIL is '" +
                                                           std::string(bad_value) +
                                                           "': it must be RANK:CALL, as 1:3");
  for (const auto& [name, value] : before) setenv(name, value.c_str(), 1);
  Config bad = config();
  bad.devices = 0;
  CHECK_THROWS_AS(configure(bad), std::invalid_argument);
}

TEST_CASE("planted: any call at all" * doctest::skip()) {
  int* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, 4);
  std::printf("%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
}

TEST_CASE("a bad setting is the error of every call") {
  const Ended child = run_child("planted: any call at all", "LOCKSTEP_SIM_ORDER=sideways");
  CHECK(child.output.find("cudaErrorInitializationError: LOCKSTEP_SIM_ORDER is 'sideways': it must "
                          "be ascending, descending or random:SEED") != std::string::npos);
}

}  // namespace
}  // namespace simt::test
