/// What would wait for ever on a GPU: the simulator ends the wait and says why.

#include <cuda.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "simt/board.h"

namespace simt::test {
namespace {

void ok(CUresult result) { REQUIRE(result == CUDA_SUCCESS); }
using test::ok;

__global__ void nothing_kernel() {}
__global__ void another_kernel() {}

CUdeviceptr address(const unsigned* data) { return reinterpret_cast<CUdeviceptr>(data); }

/// Impatient, and as the environment of a program that has not thought of it.
Config impatient() {
  Config wanted;
  wanted.patience = std::chrono::milliseconds(50);
  wanted.cautious = true;
  return wanted;
}

/// The device is broken: forgets that. Its report.
std::string broken() {
  const std::string report = cudaGetErrorString(cudaErrorLaunchFailure);
  CHECK(cudaDeviceSynchronize() == cudaErrorLaunchFailure);
  reset();
  return report;
}

/// A call while a stream waits for a value that this thread would write later.
struct Synchronizing {
  const char* name;  ///< in the report
  std::function<cudaError_t()> call;
};

TEST_CASE("deadlock: a call that may wait for the device, while a stream waits for its thread") {
  const Settings settings(impatient());
  const Device<unsigned> flag(std::vector<unsigned>(1)), spare(std::vector<unsigned>(1));
  std::vector<char> pageable(100);
  void* pinned = nullptr;
  ok(cudaMallocHost(&pinned, 8));
  void* memory = nullptr;
  cudaStream_t stream{};
  const Synchronizing calls[] = {
      {"cudaHostAlloc", [&] { return cudaMallocHost(&memory, 8); }},
      {"cudaHostRegister",
       [&] { return cudaHostRegister(pageable.data(), pageable.size(), cudaHostRegisterDefault); }},
      {"cudaMalloc", [&] { return cudaMalloc(&memory, 8); }},
      {"cudaMemset", [&] { return cudaMemset(spare, 0, 4); }},
      {"cudaStreamCreate", [&] { return cudaStreamCreate(&stream); }},
      {"cudaDeviceEnablePeerAccess", [&] { return cudaDeviceEnablePeerAccess(3, 0); }},
      {"cudaFree", [&] { return cudaFree(spare); }},
      {"cudaFreeHost", [&] { return cudaFreeHost(pinned); }},
      {"the loading of", [&] { return try_launch(nothing_kernel, {}, nullptr); }}};
  for (const Synchronizing& one : calls) {
    CAPTURE(one.name);
    Stream waiter;
    ok(cuStreamWaitValue32(waiter, address(flag), 7, CU_STREAM_WAIT_VALUE_GEQ));
    CHECK(one.call() == cudaErrorLaunchFailure);
    const std::string report = broken();
    CAPTURE(report);
    CHECK(report.starts_with("deadlock: " + std::string(one.name)));
    CHECK(report.find("of device 0 waits until the value at 0x") != report.npos);
    CHECK(report.find("is at least 7, which nothing has written for 50 ms") != report.npos);
  }
}

// Rank 0 frees pinned memory while its stream waits for rank 1, which is about to launch.
TEST_CASE("deadlock: a call that waits for the device keeps other threads' calls from going on") {
  for (const bool cautious : {false, true}) {
    Config wanted = impatient();
    wanted.cautious = cautious;
    const Settings settings(wanted);
    const Device<unsigned> flag(std::vector<unsigned>(1));
    void* pinned = nullptr;
    ok(cudaMallocHost(&pinned, 8));
    Stream waiter, writer;
    ok(cuStreamWaitValue32(waiter, address(flag), 7, CU_STREAM_WAIT_VALUE_GEQ));
    std::thread peer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      (void)cuStreamWriteValue32(writer, address(flag), 7, CU_STREAM_WRITE_VALUE_DEFAULT);
    });
    const cudaError_t freed = cudaFreeHost(pinned);
    peer.join();
    CHECK(freed == (cautious ? cudaErrorLaunchFailure : cudaSuccess));
    if (cautious) CHECK(broken().starts_with("deadlock: cudaFreeHost"));
  }
}

TEST_CASE("deadlock: a stream that waits within a graph, beside nodes that do not") {
  const Settings settings(impatient());
  const Device<unsigned> flags(std::vector<unsigned>(2)), spare(std::vector<unsigned>(1));
  Stream stream;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  ok(cuStreamWriteValue32(stream, address(flags), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  ok(cuStreamWaitValue32(stream, address(flags + 1), 5, CU_STREAM_WAIT_VALUE_EQ));
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ok(cudaStreamEndCapture(stream, &graph));
  ok(cudaGraphInstantiate(&exec, graph, 0));
  ok(cudaGraphLaunch(exec, stream));
  CHECK(cudaFree(spare) == cudaErrorLaunchFailure);
  const std::string report = broken();
  CAPTURE(report);
  CHECK(report.starts_with("deadlock: cudaFree"));
  CHECK(report.find(" is 5, which nothing has written") != report.npos);
  ok(cudaGraphExecDestroy(exec));
  ok(cudaGraphDestroy(graph));
}

TEST_CASE("deadlock: calls that wait for nothing, and kernels that are loaded") {
  const Settings settings(impatient());
  const Device<unsigned> flag(std::vector<unsigned>(1));
  launch(another_kernel, {}, nullptr);
  Event event;
  Stream waiter, other;
  ok(cuStreamWaitValue32(waiter, address(flag), 7, CU_STREAM_WAIT_VALUE_GEQ));
  launch(another_kernel, {}, other);  // it was loaded before
  void* memory = nullptr;
  ok(cudaMallocAsync(&memory, 8, other));
  ok(cudaFreeAsync(memory, other));
  ok(cudaEventRecord(event, other));
  ok(cudaStreamSynchronize(other));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ok(cudaSetDevice(1));  // another device's work is not waited for
  cudaStream_t elsewhere = nullptr;
  ok(cudaStreamCreate(&elsewhere));
  ok(cudaStreamDestroy(elsewhere));
  ok(cudaSetDevice(0));
  CHECK(cudaStreamQuery(waiter) == cudaErrorNotReady);
  ok(cuStreamWriteValue32(other, address(flag), 7, CU_STREAM_WRITE_VALUE_DEFAULT));
  ok(cudaStreamSynchronize(waiter));
}

TEST_CASE("deadlock: without caution, memory is given beside a stream that waits") {
  Config calm = impatient();
  calm.cautious = false;
  const Settings settings(calm);
  const Device<unsigned> flag(std::vector<unsigned>(1));
  Stream waiter, other;
  ok(cuStreamWaitValue32(waiter, address(flag), 7, CU_STREAM_WAIT_VALUE_GEQ));
  void* memory = nullptr;
  ok(cudaMalloc(&memory, 8));  // seen on an H100
  ok(cudaMemset(memory, 0, 8));
  ok(cuStreamWriteValue32(other, address(flag), 7, CU_STREAM_WRITE_VALUE_DEFAULT));
  ok(cudaStreamSynchronize(waiter));
  ok(cudaFree(memory));
}

TEST_CASE("deadlock: a peer that comes in time ends the wait") {
  Config wanted = impatient();
  wanted.patience = std::chrono::seconds(20);
  const Settings settings(wanted);
  const Device<unsigned> flag(std::vector<unsigned>(1));
  Stream waiter, writer;
  ok(cuStreamWaitValue32(waiter, address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ));
  std::thread peer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    ok(cuStreamWriteValue32(writer, address(flag), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  });
  void* memory = nullptr;
  ok(cudaMallocHost(&memory, 8));
  peer.join();
  ok(cudaStreamQuery(waiter));
  ok(cudaFreeHost(memory));
}

TEST_CASE("hardware queues: a stream behind one that waits, once there are more than queues") {
  for (const int connections : {1, 2, 8, 32}) {
    CAPTURE(connections);
    Config wanted = impatient();
    wanted.connections = connections;
    const Settings settings(wanted);
    const Device<unsigned> flag(std::vector<unsigned>(1));
    launch(nothing_kernel, {}, nullptr);  // loads it
    std::vector<std::unique_ptr<Stream>> streams;
    for (int k = 0; k <= connections; ++k) streams.push_back(std::make_unique<Stream>());
    Stream& waiter = *streams[0];
    ok(cuStreamWaitValue32(waiter, address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (int k = 1; k < connections; ++k) {
      launch(nothing_kernel, {}, *streams[k]);
      ok(cudaStreamQuery(*streams[k]));
    }
    Stream& behind = *streams[connections];
    ok(cuStreamWriteValue32(behind, address(flag), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    CHECK(cudaStreamQuery(behind) == cudaErrorNotReady);
    CHECK(cudaStreamSynchronize(behind) == cudaErrorLaunchFailure);
    const std::string report = broken();
    CAPTURE(report);
    CHECK(report.find("is behind stream") != report.npos);
    CHECK(report.find("of " + std::to_string(connections) + " (CUDA_DEVICE_MAX_CONNECTIONS)") !=
          report.npos);
  }
}

TEST_CASE("deadlock: what the host does before a wait is no part of it") {
  Config wanted = impatient();
  wanted.patience = std::chrono::milliseconds(400);
  wanted.connections = 2;
  const Settings settings(wanted);
  const Device<unsigned> flag(std::vector<unsigned>(1));
  launch(nothing_kernel, {}, nullptr);  // loads it
  Stream waiter, writer, behind;
  ok(cuStreamWaitValue32(waiter, address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ));
  launch(nothing_kernel, {}, behind);
  CHECK(cudaStreamQuery(behind) == cudaErrorNotReady);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::thread peer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ok(cuStreamWriteValue32(writer, address(flag), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  });
  void* memory = nullptr;
  ok(cudaMallocHost(&memory, 8));
  peer.join();
  ok(cudaStreamSynchronize(behind));
  ok(cudaFreeHost(memory));
}

TEST_CASE("hardware queues: a host thread that asks again and again gets the report too") {
  Config wanted = impatient();
  wanted.connections = 1;
  const Settings settings(wanted);
  const Device<unsigned> flag(std::vector<unsigned>(1));
  Stream waiter, behind;
  Event written;
  ok(cuStreamWaitValue32(waiter, address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ));
  ok(cuStreamWriteValue32(behind, address(flag), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  ok(cudaEventRecord(written, behind));
  cudaError_t error = cudaErrorNotReady;
  while (error == cudaErrorNotReady) error = cudaEventQuery(written);
  CHECK(error == cudaErrorLaunchFailure);
  CHECK(broken().find("is behind stream") != std::string::npos);
}

TEST_CASE("hardware queues: a host function is in none") {
  Config wanted = impatient();
  wanted.connections = 1;
  const Settings settings(wanted);
  static std::atomic<bool> go;
  go = false;
  Stream first, second;
  const Device<unsigned> flag(std::vector<unsigned>(1));
  std::thread other([&] {
    ok(cudaMemsetAsync(flag, 1, 4, second));
    ok(cudaStreamSynchronize(second));
    go = true;
  });
  ok(cudaLaunchHostFunc(
      first,
      [](void*) {
        while (!go) std::this_thread::yield();
      },
      nullptr));
  ok(cudaStreamSynchronize(first));
  other.join();
}

TEST_CASE("hardware queues: what was enqueued before the wait goes first") {
  Config wanted = impatient();
  wanted.connections = 1;
  for (const Streams mode : {Streams::eager, Streams::late}) {
    wanted.streams = mode;
    const Settings settings(wanted);
    const Device<unsigned> flag(std::vector<unsigned>(1));
    launch(nothing_kernel, {}, nullptr);  // loads it
    Stream first, second;
    ok(cuStreamWriteValue32(second, address(flag), 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    ok(cuStreamWaitValue32(first, address(flag), 1, CU_STREAM_WAIT_VALUE_GEQ));
    launch(nothing_kernel, {}, second);
    ok(cudaStreamSynchronize(second));
    ok(cudaStreamSynchronize(first));
  }
}

}  // namespace
}  // namespace simt::test
