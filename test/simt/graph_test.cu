/// Stream capture and graphs.

#include <cmath>
#include <thread>

#include "simt/support.h"

namespace simt::test {
namespace {

__global__ void add_kernel(int* data, int value) { data[threadIdx.x] += value; }
__global__ void double_kernel(int* to, const int* from) { to[threadIdx.x] = 2 * from[threadIdx.x]; }

TEST_CASE("a capture does nothing; each launch does it all") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const Settings settings(seed == 0 ? config() : late(seed));
    const Device<int> data(std::vector<int>(8, 1)), twice(std::vector<int>(8, 0));
    Stream stream;
    cudaStreamCaptureStatus status{};
    const Graph graph(capture(stream, [&] {
      launch(add_kernel, {.block = 8}, stream, data, 10);
      launch(double_kernel, {.block = 8}, stream, twice, data);
      ok(cudaMemsetAsync(data + 7, 0, 4, stream));
      ok(cudaStreamIsCapturing(stream, &status));
    }));
    CHECK(status == cudaStreamCaptureStatusActive);
    ok(cudaStreamIsCapturing(stream, &status));
    CHECK(status == cudaStreamCaptureStatusNone);
    CHECK(graph.size() == 3);
    CHECK(data.read() == std::vector<int>(8, 1));
    ok(graph.launch(stream));
    ok(graph.launch(stream));
    ok(cudaStreamSynchronize(stream));
    CHECK(data.read() == std::vector<int>{21, 21, 21, 21, 21, 21, 21, 0});
    CHECK(twice.read() == std::vector<int>{42, 42, 42, 42, 42, 42, 42, 20});
  }
}

/// Forks into a second stream and comes back; without `join_event` the copy does not wait for the
/// sum.
bool forked(bool fork_event) {
  const Device<int> data(std::vector<int>(8, 1)), twice(std::vector<int>(8, 0));
  Stream a, b;
  Event begin, ready, done;
  const Graph graph(capture(a, [&] {
    ok(cudaEventRecord(begin, a));
    ok(cudaStreamWaitEvent(b, begin));  // b joins the capture
    launch(add_kernel, {.block = 8}, a, data, 10);
    if (fork_event) {
      ok(cudaEventRecord(ready, a));
      ok(cudaStreamWaitEvent(b, ready));
    }
    launch(double_kernel, {.block = 8}, b, twice, data);
    ok(cudaEventRecord(done, b));
    ok(cudaStreamWaitEvent(a, done));
  }));
  ok(graph.launch(a));
  ok(cudaStreamSynchronize(a));
  return twice.read() == std::vector<int>(8, 22);
}

TEST_CASE("fork and join; a missing event inside a capture shows in late mode") {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Settings settings(late(seed));
    CHECK(forked(true));
    wrong += !forked(false);
  }
  CHECK(wrong > 0);
}

TEST_CASE("what a capture does not allow") {
  Stream a, b, blocking(cudaStreamDefault);
  Event event, outside;
  const Device<int> data(8);
  cudaGraph_t graph = nullptr;
  const auto begin = [&](cudaStream_t stream) {
    ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  };
  const auto end = [&](cudaStream_t stream) { return cudaStreamEndCapture(stream, &graph); };

  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) ==
        cudaErrorStreamCaptureUnsupported);
  CHECK(end(a) == cudaErrorIllegalState);

  begin(a);
  CHECK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal) == cudaErrorIllegalState);
  CHECK(cudaStreamSynchronize(a) == cudaErrorStreamCaptureUnsupported);
  CHECK(try_launch(add_kernel, {}, a, data, 1) == cudaErrorStreamCaptureInvalidated);
  CHECK(end(a) == cudaErrorStreamCaptureInvalidated);
  CHECK(graph == nullptr);

  begin(a);
  int* memory = nullptr;
  CHECK(cudaMalloc(&memory, 4) == cudaErrorStreamCaptureUnsupported);
  CHECK(end(a) == cudaErrorStreamCaptureInvalidated);

  begin(a);
  CHECK(cudaEventQuery(outside) == cudaErrorStreamCaptureUnsupported);
  CHECK(end(a) == cudaErrorStreamCaptureInvalidated);

  begin(a);
  ok(cudaEventRecord(event, a));
  CHECK(cudaEventQuery(event) == cudaErrorCapturedEvent);
  CHECK(end(a) == cudaErrorStreamCaptureInvalidated);

  begin(a);  // left open at the end
  ok(cudaEventRecord(event, a));
  ok(cudaStreamWaitEvent(b, event));
  launch(add_kernel, {.block = 8}, b, data, 1);
  CHECK(end(b) == cudaErrorStreamCaptureUnmatched);
  CHECK(end(a) == cudaErrorStreamCaptureUnjoined);

  begin(a);  // would wait for work outside
  ok(cudaEventRecord(outside, b));
  CHECK(cudaStreamWaitEvent(a, outside) == cudaErrorStreamCaptureIsolation);
  CHECK(end(a) == cudaErrorStreamCaptureInvalidated);

  begin(a);
  begin(b);
  ok(cudaEventRecord(event, a));
  CHECK(cudaStreamWaitEvent(b, event) == cudaErrorStreamCaptureMerge);
  CHECK(end(a) == cudaErrorStreamCaptureInvalidated);
  CHECK(end(b) == cudaErrorStreamCaptureInvalidated);

  begin(a);
  std::thread([&] { CHECK(end(a) == cudaErrorStreamCaptureWrongThread); }).join();
  ok(end(a));
  ok(cudaGraphDestroy(graph));

  for (const auto mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
                          cudaStreamCaptureModeRelaxed}) {  // another thread's calls, and its own
    ok(cudaStreamBeginCapture(a, mode));
    std::thread([&] {
      CHECK((cudaEventQuery(outside) == cudaErrorStreamCaptureUnsupported) ==
            (mode == cudaStreamCaptureModeGlobal));
    }).join();
    CHECK((end(a) == cudaSuccess) == (mode != cudaStreamCaptureModeGlobal));
    ok(cudaStreamBeginCapture(a, mode));
    CHECK((cudaEventQuery(outside) == cudaErrorStreamCaptureUnsupported) ==
          (mode != cudaStreamCaptureModeRelaxed));
    CHECK((end(a) == cudaSuccess) == (mode == cudaStreamCaptureModeRelaxed));
  }

  begin(blocking);
  cudaStreamCaptureStatus status{};
  CHECK(cudaStreamIsCapturing(nullptr, &status) == cudaErrorStreamCaptureImplicit);
  ok(cudaStreamIsCapturing(blocking, &status));
  CHECK(status == cudaStreamCaptureStatusActive);  // to ask does no harm
  CHECK(cudaMemsetAsync(data, 0, 4, nullptr) == cudaErrorStreamCaptureImplicit);
  CHECK(end(blocking) == cudaErrorStreamCaptureInvalidated);

  cudaStream_t short_lived = nullptr;
  ok(cudaStreamCreateWithFlags(&short_lived, cudaStreamNonBlocking));
  begin(short_lived);
  ok(cudaStreamDestroy(short_lived));
  ok(cudaMalloc(&memory, 4));  // its capture is over
  ok(cudaFree(memory));

  begin(a);
  ok(end(a));
  ok(cudaGraphDestroy(graph));
  CHECK(cudaGraphDestroy(graph) == cudaErrorInvalidValue);
  (void)cudaGetLastError();
}

/// Makes this mode the calling thread's; the one it had.
cudaStreamCaptureMode exchange(cudaStreamCaptureMode mode) {
  ok(cudaThreadExchangeStreamCaptureMode(&mode));
  return mode;
}

TEST_CASE("a thread in relaxed mode may wait for other streams while it captures") {
  constexpr auto global = cudaStreamCaptureModeGlobal, relaxed = cudaStreamCaptureModeRelaxed,
                 thread_local_ = cudaStreamCaptureModeThreadLocal;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Settings settings(seed == 0 ? config() : late(seed));
    const Device<int> data(std::vector<int>(8, 1)), other(std::vector<int>(8, 5));
    Stream a, beside;
    Event done, captured;
    std::vector<int> read(8);
    const Graph graph(capture(a, [&] {
      launch(add_kernel, {.block = 8}, a, data, 10);
      ok(cudaEventRecord(captured, a));
      CHECK(exchange(relaxed) == global);
      launch(add_kernel, {.block = 8}, beside, other, 2);
      ok(cudaMemcpyAsync(read.data(), other, 32, cudaMemcpyDeviceToHost, beside));
      ok(cudaEventRecord(done, beside));
      ok(cudaStreamSynchronize(beside));
      ok(cudaEventQuery(done));
      int* memory = nullptr;
      ok(cudaMalloc(&memory, 4));
      ok(cudaFree(memory));
      CHECK(exchange(global) == relaxed);
    }));
    CHECK(read == std::vector<int>(8, 7));
    ok(graph.launch(a));
    ok(cudaStreamSynchronize(a));
    CHECK(data.read() == std::vector<int>(8, 11));
  }

  Stream a;
  Event event, outside;
  cudaGraph_t graph = nullptr;
  const auto begin = [&](cudaStreamCaptureMode mode) { ok(cudaStreamBeginCapture(a, mode)); };
  const auto end = [&] {
    const cudaError_t error = cudaStreamEndCapture(a, &graph);
    if (error == cudaSuccess) ok(cudaGraphDestroy(graph));
    return error;
  };

  begin(thread_local_);  // the mode is back
  CHECK(exchange(relaxed) == global);
  CHECK(exchange(global) == relaxed);
  CHECK(cudaEventQuery(outside) == cudaErrorStreamCaptureUnsupported);
  CHECK(end() == cudaErrorStreamCaptureInvalidated);

  CHECK(exchange(relaxed) == global);  // what can never be, is not allowed in any mode
  begin(thread_local_);
  ok(cudaEventRecord(event, a));
  CHECK(cudaEventQuery(event) == cudaErrorCapturedEvent);
  CHECK(end() == cudaErrorStreamCaptureInvalidated);
  begin(thread_local_);
  CHECK(cudaStreamSynchronize(a) == cudaErrorStreamCaptureUnsupported);
  CHECK(end() == cudaErrorStreamCaptureInvalidated);

  CHECK(exchange(thread_local_) == relaxed);  // its own captures count
  begin(thread_local_);
  CHECK(cudaEventQuery(outside) == cudaErrorStreamCaptureUnsupported);
  CHECK(end() == cudaErrorStreamCaptureInvalidated);
  begin(relaxed);
  ok(cudaEventQuery(outside));
  ok(end());
  CHECK(exchange(global) == thread_local_);

  for (const auto mode : {global, thread_local_, relaxed}) {  // beside another's capture
    begin(global);
    std::thread([&] {
      CHECK(exchange(mode) == global);  // each thread has its own
      CHECK((cudaEventQuery(outside) == cudaErrorStreamCaptureUnsupported) == (mode == global));
    }).join();
    CHECK((end() == cudaSuccess) == (mode != global));
  }

  CHECK(cudaThreadExchangeStreamCaptureMode(nullptr) == cudaErrorInvalidValue);
  auto none = static_cast<cudaStreamCaptureMode>(3);
  CHECK(cudaThreadExchangeStreamCaptureMode(&none) == cudaErrorInvalidValue);
  (void)cudaGetLastError();
}

/// Doubles one value in two streams, by launches of one executable graph or of one for each.
int doubled(bool of_one) {
  const Device<int> value(std::vector<int>{1}), copy(1);
  Stream a, b;
  const auto body = [&] {
    launch(double_kernel, {}, a, copy, value);
    ok(cudaMemcpyAsync(value, copy, 4, cudaMemcpyDeviceToDevice, a));
  };
  const Graph one(capture(a, body)), other(capture(a, body));
  for (int i = 0; i < 4; ++i) ok((of_one || i % 2 == 0 ? one : other).launch(i % 2 ? b : a));
  launch(add_kernel, {}, b, value, 100);
  ok(cudaStreamSynchronize(b));
  return value.read()[0];
}

TEST_CASE("launches of one executable graph run one after the other, in whatever streams") {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Settings settings(late(seed));
    CHECK(doubled(true) == 116);
    wrong += doubled(false) != 116;
  }
  CHECK(wrong > 0);  // two executable graphs know nothing of each other
}

}  // namespace
}  // namespace simt::test
