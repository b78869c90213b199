// Streams are used again (core/cuda/stream_pool.h).

#include <doctest/doctest.h>

#include <set>
#include <vector>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/stream.h"

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

}  // namespace lockstep
