// Work that must not grow faster than the number of parameters: messages are counted, not seconds.

#include <doctest/doctest.h>

#include <algorithm>
#include <regex>

#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// How many calls the communicator has made: its record numbers them.
int calls_of(const Communicator& communicator) {
  const std::string record = communicator.flight_record();
  static const std::regex number("#([0-9]+)");
  int last = -1;
  for (std::sregex_iterator at(record.begin(), record.end(), number), end; at != end; ++at)
    last = std::max(last, std::stoi((*at)[1]));
  return last + 1;
}

/// Of a DistributedDataParallel that is made and takes two steps.
int calls_for(int parameters, std::int64_t numel, int ranks = 2) {
  int calls = 0;
  run_threads(ranks, {}, [&](World& world) {
    std::vector<Parameter> all;
    std::vector<Buffer> buffers;
    for (int i = 0; i < parameters; ++i) {
      const double value = i + 1000 * world.rank();
      all.emplace_back(Tensor::full({numel}, value, i % 3 ? DType::f32 : DType::f64),
                       fmt::format("p{}", i));
      buffers.push_back({fmt::format("b{}", i), Tensor::full({1 + i % 2}, value, DType::i64)});
    }
    DistributedDataParallel ddp(all, buffers, world, {.buffers = dist::BufferMode::broadcast});
    for (int i = 0; i < parameters; ++i) {  // rank 0's
      const auto at = static_cast<std::size_t>(i);
      if (numel == 0) continue;
      expect(all[at].value().item({0}) == i, "parameter {}: {}", i, all[at].value().item({0}));
      expect(buffers[at].value.item({0}) == i, "buffer {}: {}", i, buffers[at].value.item({0}));
    }
    for (int step = 0; step < 2; ++step) {
      Tape tape;
      Tensor loss = sum(all[1]);
      for (std::size_t i = 2; i < all.size(); ++i)
        if (i % 3) loss = loss + sum(all[i]);
      tape.backward(loss);
      ddp.zero_grad();
    }
    if (world.rank() == 0) calls = calls_of(world.communicator());
  });
  return calls;
}

}  // namespace

TEST_CASE("ddp: many small parameters take no more messages than few") {
  const int few = calls_for(6, 3), many = calls_for(600, 3);
  CHECK(few > 3);
  CHECK(many == few);
}

TEST_CASE("ddp: large parameters still travel one by one, and arrive whole") {
  const int large = 200'000;  // 800 KB of f32, so that no two of them fit into one message
  CHECK(calls_for(6, large) >= 6);
  CHECK(calls_for(2, 0) > 0);
}
