// The executor alone, over a transport that moves as many bytes as the test allows: of every step
// of every plan, whom it waits for and what it counts.

#include "lockstep/dist/collectives/executor.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>

#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

/// All peers make the same call. What they send are zeros.
struct Rationed final : Transport {
  Rationed(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view name() const override { return "rationed"; }
  bool has_shared_memory() const override { return false; }
  std::size_t send(int, std::span<const std::byte> bytes) override {
    const std::size_t count = std::min(bytes.size(), may_send);
    may_send -= count;
    return count;
  }
  std::size_t receive(int, std::span<std::byte> bytes) override {
    const std::size_t count = std::min(bytes.size(), may_receive);
    for (std::size_t i = 0; i < count; ++i, ++received)
      bytes[i] = received < head.size() ? head[received] : std::byte{};
    may_receive -= count;
    return count;
  }
  SharedRegion allocate(std::size_t) override { return {}; }
  void relax(unsigned) override {}
  Seconds now() const override { return Seconds(0); }
  void abort(std::string_view) noexcept override {}

  std::size_t may_send = 0, may_receive = 0, received = 0;
  std::span<const std::byte> head;  // of the message that arrives

 private:
  int rank_, size_;
};

struct Run {
  PlanInput input;
  CallHeader header;
  std::vector<float> buffer, part;

  explicit Run(const PlanInput& of)
      : input(of),
        buffer(static_cast<std::size_t>(of.count)),
        part(static_cast<std::size_t>(of.part(of.rank).size())) {
    header.operation = input.operation;
    header.algorithm = input.algorithm;
    header.count = input.count;
  }
  std::byte* bytes(std::vector<float>& of) const { return reinterpret_cast<std::byte*>(of.data()); }
};

/// Every step waits, in both directions, then only to send, then goes on.
void check_awaited(const PlanInput& input) {
  CAPTURE(name_of(input.operation));
  CAPTURE(name_of(input.algorithm));
  CAPTURE(input.rank);
  CAPTURE(input.world);
  CAPTURE(input.count);
  Run run(input);
  Plan plan;
  make_plan(input, plan);
  Rationed transport(input.rank, input.world);
  FlightRecorder recorder(input.world);
  Executor executor(transport, recorder);
  executor.start({input, run.header, run.bytes(run.buffer), run.bytes(run.part)});
  executor.progress();  // steps without a message
  std::uint64_t payload = 0;
  for (std::size_t k = 0; k < plan.size(); ++k) {
    const Step& step = plan[k];
    CAPTURE(k);
    const auto message = [&](int peer, const Range& range) {
      return peer < 0 ? 0
                      : (step.header ? sizeof(CallHeader) : 0) +
                            4 * static_cast<std::size_t>(range.size());
    };
    const std::size_t to_send = message(step.to, step.send),
                      to_receive = message(step.from, step.receive);
    if (step.from >= 0) payload += 4 * static_cast<std::uint64_t>(step.receive.size());
    if (to_send + to_receive == 0) continue;
    REQUIRE(executor.position() == fmt::format("step {} of {}", k + 1, plan.size()));
    CHECK(executor.awaited() == (to_receive > 0 ? step.from : step.to));
    transport.received = 0;
    transport.head =
        step.header ? std::as_bytes(std::span(&run.header, 1)) : std::span<const std::byte>();
    transport.may_receive = to_receive;
    if (to_send > 0) {
      executor.progress();
      CHECK(executor.awaited() == step.to);
      CHECK(executor.position() == fmt::format("step {} of {}", k + 1, plan.size()));
    }
    transport.may_send = to_send;
    executor.progress();
    CHECK(transport.may_send == 0);
    CHECK(transport.may_receive == 0);
  }
  CHECK(executor.done());
  CHECK(executor.bytes_moved() == payload);
}

}  // namespace

TEST_CASE("executor: the rank that has to move, and the bytes, in every step of every plan") {
  const NodeMap nodes = node_map({"a", "a", "b", "b", "b", "a", "c"});
  for (const int world : {2, 3, 5, 7})
    for (int rank = 0; rank < world; ++rank)
      for (const std::int64_t count : {1, 23, 10'000}) {
        const auto check = [&](Operation operation, Algorithm algorithm) {
          check_awaited({.operation = operation,
                         .algorithm = algorithm,
                         .rank = rank,
                         .world = world,
                         .count = count,
                         .root = world - 1,
                         .nodes = &nodes});
        };
        for (const Algorithm algorithm :
             {Algorithm::ring, Algorithm::two_shot, Algorithm::one_shot, Algorithm::halving})
          check(Operation::all_reduce, algorithm);
        if (world == 7) check(Operation::all_reduce, Algorithm::hierarchical);
        for (const Algorithm algorithm : {Algorithm::ring, Algorithm::two_shot})
          for (const Operation operation : {Operation::reduce_scatter, Operation::all_gather})
            check(operation, algorithm);
        check(Operation::broadcast, Algorithm::two_shot);
        if (count == 1) check(Operation::barrier, Algorithm::two_shot);
      }
}
