// Streams are used again (core/cuda/stream_pool.h).

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

TEST_CASE("streams: one that has ended is the next one, and none is two at a time") {
  const Device device{*gpu::kind(), 0};
  std::set<void*> seen;
  for (int round = 0; round < 40; ++round) {  // more than a GPU has queues
    std::vector<Stream> alive;
    std::set<void*> now;
    for (int k = 0; k < 3; ++k) {
      alive.push_back(Stream::create(device));
      now.insert(alive.back().native());
    }
    CHECK(now.size() == 3);
    seen.merge(now);
  }
  CHECK(seen.size() == 3);
}

TEST_CASE("streams: those of another device are not taken") {
  if (gpu::count() < 2) return;
  const auto of = [](int index) { return Stream::create(Device{*gpu::kind(), index}).native(); };
  CHECK(of(0) != of(1));
}

TEST_CASE("streams: none waits for the legacy default stream, or it for them") {
  const Device device{*gpu::kind(), 0};
  for (const Stream& stream :
       {Stream::current(device), Stream::reading(device), Stream::create(device),
        Stream::create(device, StreamUse::communicating)}) {
    const auto native = static_cast<cudaStream_t>(stream.native());
    REQUIRE(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    cudaStreamCaptureStatus status{};  // refused while a stream that waits for it captures
    CHECK(cudaStreamIsCapturing(cudaStreamLegacy, &status) == cudaSuccess);
    cudaGraph_t graph{};
    REQUIRE(cudaStreamEndCapture(native, &graph) == cudaSuccess);
    (void)cudaGraphDestroy(graph);
  }
}

TEST_CASE("streams: a copy between GPUs comes after what wrote, and before what writes next") {
  if (gpu::count() < 2) return;
  const Device from{*gpu::kind(), 0}, to{*gpu::kind(), 1};
  const Tensor source = Tensor::empty({9}, DType::f32, from);
  const Tensor target = Tensor::empty({9}, DType::f32, to);
  for (int i = 0; i < 200; ++i) {  // streams that are late are not always late where it matters
    source.fill(i);
    const Tensor made = source.to(to);
    target.fill(-1);
    target.copy_from(source);
    source.fill(-2);
    const std::vector<float> all(9, static_cast<float>(i));
    CHECK(made.to_vector<float>() == all);
    CHECK(target.to_vector<float>() == all);
  }
}

}  // namespace lockstep
