/// Streams and events, above all in late mode: order within a stream, none between streams but what
/// events make.

#include <atomic>
#include <cstring>
#include <thread>
#include <utility>

#include "simt/support.h"

namespace simt::test {
namespace {

__global__ void fill_kernel(int* data, int value) { data[threadIdx.x] = value; }
__global__ void copy_kernel(int* to, const int* from) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void append_kernel(int* log, int value) {  // log[0]: how many
  log[++log[0]] = value;
}

constexpr std::uint64_t seeds = 20;

/// One stream writes, another one reads; returns whether it read what was written.
bool hand_over(bool with_event) {
  const Device<int> a(std::vector<int>(32, -1)), b(32);
  Stream writer, reader;
  Event written;
  launch(fill_kernel, {.block = 32}, writer, a, 7);
  if (with_event) {
    ok(cudaEventRecord(written, writer));
    ok(cudaStreamWaitEvent(reader, written));
  }
  launch(copy_kernel, {.block = 32}, reader, b, a);
  ok(cudaStreamSynchronize(reader));
  ok(cudaStreamSynchronize(writer));
  return b.read() == std::vector<int>(32, 7);
}

TEST_CASE(
    "a missing event between two streams gives wrong results for some seeds, a present one never") {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Settings settings(late(seed));
    wrong += !hand_over(false);
    CHECK(hand_over(true));
  }
  CHECK(wrong > 0);
  CHECK(hand_over(false));  // eagerly it would never have shown
}

TEST_CASE("within a stream everything is in order") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Settings settings(late(seed));
    const Device<int> log(std::vector<int>(100));
    Stream a, b;
    Event even;
    std::vector<int> expected{40};
    expected.resize(100);
    for (int i = 0; i < 40; ++i) {  // a chain over two streams
      Stream& stream = i % 2 ? b : a;
      launch(append_kernel, {}, stream, log, i);
      ok(cudaEventRecord(even, stream));
      ok(cudaStreamWaitEvent(i % 2 ? a : b, even));
      expected[i + 1] = i;
    }
    ok(cudaDeviceSynchronize());
    CHECK(log.read() == expected);
  }
}

TEST_CASE("the legacy default stream waits for blocking streams, and they for it") {
  int overtaken = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Settings settings(late(seed));
    for (const unsigned flags : {cudaStreamDefault, cudaStreamNonBlocking}) {
      const Device<int> log(std::vector<int>(8));
      Stream stream(flags), third(flags);
      launch(append_kernel, {}, stream, log, 1);
      launch(append_kernel, {}, nullptr, log, 2);
      launch(append_kernel, {}, third, log, 3);
      ok(cudaDeviceSynchronize());
      const bool in_order = log.read() == std::vector<int>{3, 1, 2, 3, 0, 0, 0, 0};
      if (flags == cudaStreamDefault)
        CHECK(in_order);
      else
        overtaken += !in_order;
    }
  }
  CHECK(overtaken > 0);
}

TEST_CASE("pageable host memory is done with when the copy returns, pinned memory is not") {
  int read_late = 0, written_late = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Settings settings(late(seed));
    const Device<int> device(4);
    Stream stream;
    int* pinned = nullptr;
    ok(cudaMallocHost(&pinned, 16));
    for (const bool use_pinned : {false, true}) {
      int pageable[4] = {};
      int* host = use_pinned ? pinned : pageable;
      for (int i = 0; i < 4; ++i) host[i] = i;
      ok(cudaMemcpyAsync(device, host, 16, cudaMemcpyHostToDevice, stream));
      for (int i = 0; i < 4; ++i) host[i] = 100;  // too early if it is pinned
      ok(cudaStreamSynchronize(stream));
      const bool early = device.read() == std::vector<int>{0, 1, 2, 3};
      launch(fill_kernel, {.block = 4}, stream, device, 5);
      ok(cudaMemcpyAsync(host, device, 16, cudaMemcpyDeviceToHost, stream));
      const bool there = host[3] == 5;
      ok(cudaStreamSynchronize(stream));
      CHECK(host[3] == 5);
      if (use_pinned) {
        read_late += !early;
        written_late += !there;
      } else {
        CHECK(early);
        CHECK(there);
      }
    }
    ok(cudaFreeHost(pinned));
  }
  CHECK(read_late > 0);
  CHECK(written_late > 0);
}

TEST_CASE("memory allocated in one stream and filled in another too early is lost for some seeds") {
  const auto run = [](bool with_event) {
    Stream a, b;
    Event allocated;
    int* data = nullptr;
    ok(cudaMallocAsync(&data, 128, a));
    if (with_event) {
      ok(cudaEventRecord(allocated, a));
      ok(cudaStreamWaitEvent(b, allocated));
    }
    launch(fill_kernel, {.block = 32}, b, data, 9);
    ok(cudaDeviceSynchronize());
    int value = 0;
    ok(cudaMemcpy(&value, data, 4, cudaMemcpyDeviceToHost));
    ok(cudaFreeAsync(data, b));
    return value == 9;
  };
  int lost = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Settings settings(late(seed));
    lost += !run(false);
    CHECK(run(true));
  }
  CHECK(lost > 0);
}

TEST_CASE("events: queries, and a wait is for the record before it") {
  const Settings settings(late(4));
  Stream a, b;
  Event event(cudaEventDefault), never, other;
  ok(cudaEventQuery(never));
  ok(cudaEventSynchronize(never));
  const Device<int> log(std::vector<int>(8));
  ok(cudaStreamWaitEvent(b, event));  // never recorded: nothing to wait for
  launch(append_kernel, {}, b, log, 1);
  ok(cudaStreamSynchronize(b));
  ok(cudaEventRecord(event, a));
  launch(append_kernel, {}, a, log, 2);
  ok(cudaEventRecord(other, a));
  cudaError_t error;
  while ((error = cudaEventQuery(other)) == cudaErrorNotReady) {
  }
  ok(error);
  CHECK(log.read()[0] == 2);
  ok(cudaEventQuery(event));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, event, other) == cudaErrorInvalidResourceHandle);
  Event end(cudaEventDefault);
  ok(cudaEventRecord(end, a));
  ok(cudaEventSynchronize(end));
  ok(cudaEventElapsedTime(&milliseconds, event, end));
  CHECK(milliseconds >= 0);
  while ((error = cudaStreamQuery(a)) == cudaErrorNotReady) {
  }
  ok(error);
  ok(cudaSetDevice(1));
  CHECK(cudaEventRecord(event, nullptr) == cudaErrorInvalidResourceHandle);
  ok(cudaStreamWaitEvent(nullptr, event));  // across devices it is allowed
  ok(cudaSetDevice(0));
  CHECK(cudaEventRecord(nullptr, a) == cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
}

TEST_CASE("events: the time between them, if both have a time and are over") {
  int not_ready = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Settings settings(late(seed));
    Stream stream;
    Event begin(cudaEventDefault), end(cudaEventDefault), never(cudaEventDefault), untimed;
    float milliseconds = -1;
    const auto between = [&](cudaEvent_t first, cudaEvent_t last) {
      return cudaEventElapsedTime(&milliseconds, first, last);
    };
    for (cudaEvent_t event : {cudaEvent_t{begin}, cudaEvent_t{untimed}, cudaEvent_t{end}})
      ok(cudaEventRecord(event, stream));
    not_ready += between(begin, end) == cudaErrorNotReady;
    ok(cudaStreamSynchronize(stream));
    CHECK(between(begin, never) == cudaErrorInvalidResourceHandle);
    CHECK(between(begin, untimed) == cudaErrorInvalidResourceHandle);
    ok(between(begin, end));
    CHECK(milliseconds >= 0);
    (void)cudaGetLastError();
  }
  CHECK(not_ready > 0);

  Event here(cudaEventDefault);
  ok(cudaEventRecord(here, nullptr));
  ok(cudaSetDevice(1));
  Event there(cudaEventDefault);
  ok(cudaEventRecord(there, nullptr));
  ok(cudaSetDevice(0));
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, here, there) == cudaErrorInvalidResourceHandle);
  (void)cudaGetLastError();
}

TEST_CASE("priorities: kept, moved into the range, and of no influence on what is computed") {
  int least = 1, greatest = 1;
  ok(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  ok(cudaDeviceGetStreamPriorityRange(nullptr, nullptr));
  CHECK(least == 0);
  CHECK(greatest == -5);
  for (const auto& [asked, kept] : {std::pair{0, 0}, {-3, -3}, {-5, -5}, {-6, -5}, {7, 0}}) {
    cudaStream_t stream = nullptr;
    ok(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, asked));
    int priority = 1;
    ok(cudaStreamGetPriority(stream, &priority));
    CHECK(priority == kept);
    CHECK(cudaStreamGetPriority(stream, nullptr) == cudaErrorInvalidValue);
    ok(cudaStreamDestroy(stream));
  }
  int priority = 1;
  ok(cudaStreamGetPriority(nullptr, &priority));
  CHECK(priority == 0);
  CHECK(cudaStreamCreateWithPriority(nullptr, cudaStreamDefault, 0) == cudaErrorInvalidValue);

  // Without an event the urgent stream may still be the later one: a priority orders nothing.
  int first = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Settings settings(late(seed));
    const Device<int> log(std::vector<int>(4));
    cudaStream_t urgent = nullptr;
    ok(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
    Stream other;
    launch(append_kernel, {}, other, log, 1);
    launch(append_kernel, {}, urgent, log, 2);
    ok(cudaDeviceSynchronize());
    first += log.read()[1] == 2;
    ok(cudaStreamDestroy(urgent));
  }
  CHECK(first > 0);
  CHECK(first < static_cast<int>(seeds));
  (void)cudaGetLastError();
}

TEST_CASE("a destroyed stream finishes its work") {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const Settings settings(late(seed));
    const Device<int> a(32);
    cudaStream_t stream = nullptr;
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    launch(fill_kernel, {.block = 32}, stream, a, 3);
    ok(cudaStreamDestroy(stream));
    CHECK(cudaStreamSynchronize(stream) == cudaErrorInvalidResourceHandle);
    ok(cudaDeviceSynchronize());
    CHECK(a.read() == std::vector<int>(32, 3));
    (void)cudaGetLastError();
  }
}

TEST_CASE("host functions run in their stream's order, and call nothing of CUDA") {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Settings settings(late(seed));
    Stream stream;
    static cudaError_t inside;
    static std::vector<int> seen;
    seen.clear();
    int one = 1, two = 2;
    const cudaHostFn_t note = [](void* data) {
      seen.push_back(*static_cast<int*>(data));
      inside = cudaStreamQuery(nullptr);
    };
    ok(cudaLaunchHostFunc(stream, note, &one));
    ok(cudaLaunchHostFunc(stream, note, &two));
    ok(cudaStreamSynchronize(stream));
    CHECK(seen == std::vector<int>{1, 2});
    CHECK(inside == cudaErrorNotPermitted);
    (void)cudaGetLastError();
  }
}

TEST_CASE("a host function may wait for another host thread, which goes on with its own streams") {
  static std::atomic<bool> go;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Settings settings(seed == 0 ? config() : late(seed));
    go = false;
    Stream stream;
    const Device<int> data(
        32);  // to free it waits for the device: not what the other thread may do
    std::thread other([&data] {
      for (int i = 0; i < 10; ++i) {
        launch(fill_kernel, {.block = 32}, nullptr, data, i);
        CHECK(data.read()[31] == i);
      }
      go = true;
    });
    ok(cudaLaunchHostFunc(
        stream,
        [](void*) {
          while (!go) std::this_thread::yield();
        },
        nullptr));
    ok(cudaStreamSynchronize(stream));
    other.join();
  }
}

TEST_CASE("host threads share the simulator") {
  for (const bool is_late : {false, true}) {
    const Settings settings(is_late ? late(5) : config());
    std::vector<std::thread> ranks;
    std::atomic<int> wrong = 0;
    for (int rank = 0; rank < 4; ++rank)
      ranks.emplace_back([rank, &wrong] {
        if (cudaSetDevice(rank) != cudaSuccess) ++wrong;
        cudaStream_t stream = nullptr;
        int *data = nullptr, value = -1;
        for (int round = 0; round < 30; ++round) {
          wrong += cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess;
          wrong += cudaMallocAsync(&data, 400, stream) != cudaSuccess;
          wrong +=
              try_launch(fill_kernel, {.block = 100}, stream, data, rank + round) != cudaSuccess;
          wrong +=
              cudaMemcpyAsync(&value, data + 99, 4, cudaMemcpyDeviceToHost, stream) != cudaSuccess;
          wrong += value != rank + round;
          wrong += cudaFreeAsync(data, stream) != cudaSuccess;
          wrong += cudaStreamDestroy(stream) != cudaSuccess;
        }
      });
    for (std::thread& rank : ranks) rank.join();
    CHECK(wrong == 0);
  }
}

}  // namespace
}  // namespace simt::test
