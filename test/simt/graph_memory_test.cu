/// Memory that graphs allocate and free; and what a thread that captures may not ask of others.

#include <cmath>
#include <functional>

#include "simt/support.h"

namespace simt::test {
namespace {

__global__ void accumulate_kernel(float* data, float* out) {
  // data is fresh in each replay: NaN
  out[threadIdx.x] = isnan(data[threadIdx.x]) ? out[threadIdx.x] + 1 : -1000.0f;
  data[threadIdx.x] = 5;
}
__global__ void read_kernel(const float* data, float* out) { *out = *data; }

TEST_CASE("memory of a graph: one address, fresh in each replay") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Settings settings(seed == 0 ? config() : late(seed));
    const Device<float> out(std::vector<float>(4, 0.0f));
    Stream stream;
    float *data = nullptr, *kept = nullptr;
    const Graph graph(capture(stream,
                              [&] {
                                ok(cudaMallocAsync(&data, 16, stream));
                                ok(cudaMallocAsync(&kept, 16, stream));
                                launch(accumulate_kernel, {.block = 4}, stream, data, out);
                                launch(accumulate_kernel, {.block = 4}, stream, kept, out);
                                ok(cudaFreeAsync(data, stream));
                                CHECK(cudaFreeAsync(data, stream) == cudaErrorInvalidValue);
                              }),
                      cudaGraphInstantiateFlagAutoFreeOnLaunch);
    for (int replay = 0; replay < 3; ++replay) ok(graph.launch(stream));
    CHECK(graph.launch(stream) == cudaSuccess);
    ok(cudaStreamSynchronize(stream));
    CHECK(out.read() == std::vector<float>(4, 8.0f));
    launch(read_kernel, {}, stream, kept, out);  // lives on after the replay
    ok(cudaStreamSynchronize(stream));
    CHECK(out.read()[0] == 5);
    CHECK(cudaFree(data) == cudaErrorInvalidValue);
    ok(cudaFreeAsync(kept, stream));
    ok(cudaStreamSynchronize(stream));
    (void)cudaGetLastError();
  }
}

TEST_CASE("memory that a replay leaves must be freed before the next, unless that is asked for") {
  Stream stream;
  float* data = nullptr;
  const Graph graph(capture(stream, [&] { ok(cudaMallocAsync(&data, 16, stream)); }));
  ok(graph.launch(stream));
  CHECK(graph.launch(stream) == cudaErrorInvalidValue);
  ok(cudaFreeAsync(data, stream));
  ok(graph.launch(stream));
  ok(cudaFree(data));
  (void)cudaGetLastError();
}

TEST_CASE("memory of a graph: another graph may free it, and each launch wants it there") {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Settings settings(seed == 0 ? config() : late(seed));
    const Device<float> out(std::vector<float>(4, 0.0f));
    Stream stream;
    float* data = nullptr;
    const Graph allocates(capture(stream, [&] {
      ok(cudaMallocAsync(&data, 16, stream));
      launch(accumulate_kernel, {.block = 4}, stream, data, out);
    }));
    const Graph frees(capture(stream, [&] {
      launch(read_kernel, {}, stream, data, out);
      ok(cudaFreeAsync(data, stream));
      CHECK(cudaFreeAsync(data, stream) == cudaErrorInvalidValue);
    }));
    CHECK(frees.launch(stream) == cudaErrorInvalidValue);  // nothing is there yet
    for (int round = 0; round < 2; ++round) {
      ok(allocates.launch(stream));
      CHECK(allocates.launch(stream) == cudaErrorInvalidValue);
      ok(frees.launch(stream));
      CHECK(frees.launch(stream) == cudaErrorInvalidValue);
    }
    CHECK(cudaFreeAsync(data, stream) == cudaErrorInvalidValue);
    ok(cudaStreamSynchronize(stream));
    CHECK(out.read() == std::vector<float>{5, 2, 2, 2});
    (void)cudaGetLastError();
  }
}

TEST_CASE("memory of a graph: one executable graph of it at a time") {
  Stream stream;
  float* data = nullptr;
  const cudaGraph_t graph = capture(stream, [&] {
    ok(cudaMallocAsync(&data, 16, stream));
    ok(cudaFreeAsync(data, stream));
  });
  cudaGraphExec_t one = nullptr, other = nullptr;
  ok(cudaGraphInstantiate(&one, graph));
  CHECK(cudaGraphInstantiate(&other, graph) == cudaErrorInvalidValue);
  ok(cudaGraphExecDestroy(one));
  ok(cudaGraphInstantiate(&other, graph));
  ok(cudaGraphExecDestroy(other));
  ok(cudaGraphDestroy(graph));
  (void)cudaGetLastError();
}

TEST_CASE("memory from outside is not freed in a capture") {
  Stream stream;
  const Device<int> outside(4);
  float* of_pool = nullptr;
  ok(cudaMallocAsync(&of_pool, 16, stream));
  for (void* data : {static_cast<void*>(outside), static_cast<void*>(of_pool)}) {
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaFreeAsync(data, stream) == cudaErrorInvalidValue);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  }
  ok(cudaFreeAsync(of_pool, stream));
  (void)cudaGetLastError();
}

TEST_CASE("a thread that captures does not wait for other streams or events") {
  Stream captures, beside;
  Event begin(cudaEventDefault), end(cudaEventDefault);
  ok(cudaEventRecord(begin, beside));
  ok(cudaEventRecord(end, beside));
  float milliseconds = 0;
  const std::function<cudaError_t()> calls[] = {
      [&] { return cudaEventSynchronize(end); },
      [&] { return cudaEventElapsedTime(&milliseconds, begin, end); },
      [&] { return cudaStreamSynchronize(beside); },
      [&] { return cudaStreamQuery(beside); },
  };
  for (const auto& call : calls)
    for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                            cudaStreamCaptureModeRelaxed}) {
      ok(cudaStreamBeginCapture(captures, mode));
      const bool allowed = mode == cudaStreamCaptureModeRelaxed;
      CHECK(call() == (allowed ? cudaSuccess : cudaErrorStreamCaptureUnsupported));
      cudaGraph_t graph = nullptr;
      CHECK(cudaStreamEndCapture(captures, &graph) ==
            (allowed ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
      if (graph) ok(cudaGraphDestroy(graph));
    }
  (void)cudaGetLastError();
}

}  // namespace
}  // namespace simt::test
