// The executor alone, over a transport that moves as many bytes as the test allows: of every step
// of every plan, whom it waits for and what it counts.

#include "lockstep/dist/collectives/executor.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>

#include "lockstep/core/memory.h"
#include "lockstep/dist/world/world.h"
#include "support/capture_binding.h"
#include "support/expect.h"
#include "support/text.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

/// All peers make the same call.
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
      bytes[i] = received < head.size() ? head[received] : payload(received - head.size());
    may_receive -= count;
    return count;
  }
  SharedRegion allocate(std::size_t) override { return {}; }
  void relax(unsigned) override {}
  Seconds now() const override { return Seconds(0); }
  void abort(std::string_view) noexcept override {}

  /// Of a message: element k is `first + k`.
  std::byte payload(std::size_t at) const {
    const float element = first < 0 ? 0 : static_cast<float>(first + static_cast<double>(at / 4));
    return std::bit_cast<std::array<std::byte, 4>>(element)[at % 4];
  }

  double first = -1;  // negative: zeros
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
    header.sequence = 7;
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
  std::vector<bool> heard(static_cast<std::size_t>(input.world));  // from whom there was a header
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
    if (step.from < 0) continue;
    if (step.header) heard[static_cast<std::size_t>(step.from)] = true;
    CHECK(test::contains(recorder.last_seen(step.from), "was last heard from in #7") ==
          heard[static_cast<std::size_t>(step.from)]);
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

TEST_CASE("executor: what arrives in pieces of any size is added once, element by element") {
  constexpr std::int64_t count = 40'001;
  for (const std::size_t piece : {7u, 64u, 5000u, 32768u, 40'000u, 200'000u}) {
    CAPTURE(piece);
    const PlanInput input{.operation = Operation::reduce_scatter,
                          .algorithm = Algorithm::ring,
                          .rank = 1,
                          .world = 2,
                          .count = count};
    Run run(input);
    for (std::size_t i = 0; i < run.buffer.size(); ++i)
      run.buffer[i] = static_cast<float>(3 * (i % 1000));
    const std::vector<float> before = run.buffer;
    Rationed transport(1, 2);
    transport.first = 5;
    transport.head = std::as_bytes(std::span(&run.header, 1));
    FlightRecorder recorder(2);
    Executor executor(transport, recorder);
    executor.start({input, run.header, run.bytes(run.buffer), run.bytes(run.part)});
    for (int round = 0; !executor.done() && round < 1'000'000; ++round) {
      transport.may_receive = piece;
      transport.may_send = 2 * piece;
      executor.progress();
    }
    REQUIRE(executor.done());
    const Range own = input.part(1);
    std::size_t wrong = 0;
    for (std::int64_t i = 0; i < own.size(); ++i)
      wrong += run.part[static_cast<std::size_t>(i)] !=
               before[static_cast<std::size_t>(own.begin + i)] + static_cast<float>(5 + i);
    CHECK(wrong == 0);
  }
}

TEST_CASE("executor: the scratch memory of a large call is given back at its end") {
  const PlanInput input{.operation = Operation::all_reduce,
                        .algorithm = Algorithm::one_shot,
                        .rank = 0,
                        .world = 3,
                        .count = 1'000'000};
  Run run(input);
  Rationed transport(0, 3);
  transport.head = std::as_bytes(std::span(&run.header, 1));
  FlightRecorder recorder(3);
  Executor executor(transport, recorder);
  const std::size_t before = memory::statistics().live_bytes;
  executor.start({input, run.header, run.bytes(run.buffer), nullptr});
  CHECK(memory::statistics().live_bytes >= before + 8'000'000);
  for (int step = 0; step < 2; ++step) {
    transport.received = 0;
    transport.may_send = transport.may_receive = sizeof(CallHeader) + 4'000'000;
    executor.progress();
  }
  CHECK(executor.done());
  CHECK(memory::statistics().live_bytes == before);
}

TEST_CASE(
    "executor: in shared memory, at any place of it, unequal parts, and the bytes that move") {
  for (const int world : {3, 5})
    for (const std::int64_t count : {20'003})
      for (const std::int64_t offset : {77}) {
        CAPTURE(world);
        CAPTURE(count);
        CAPTURE(offset);
        run_threads(world, {.comm = "direct"}, [=](World& ranks) {
          Communicator& communicator = ranks.communicator();
          const Tensor memory = communicator.allocate(21'000, DType::f32);
          const int rank = ranks.rank();
          const auto buffer_bytes = static_cast<std::size_t>(4 * count);
          const auto size = static_cast<std::uint64_t>(4 * partition(count, world, rank).size());
          test::expect(communicator.algorithm(buffer_bytes) == "two-shot-shared", "{}",
                       communicator.algorithm(buffer_bytes));
          const auto others = static_cast<std::uint64_t>(world - 1);
          const auto moved = [&](auto call) {
            const std::uint64_t before = communicator.bytes_moved();
            call();
            return communicator.bytes_moved() - before;
          };
          const Tensor buffer = memory.slice(offset, offset + count);
          for (std::int64_t i = 0; i < memory.numel(); ++i)
            memory.data<float>()[i] = static_cast<float>((rank + 1) * 30'000 + i);
          communicator.barrier("all have written").wait();
          const std::uint64_t reduced =
              moved([&] { communicator.all_reduce(buffer, "sum").wait(); });
          test::expect(reduced == 2 * others * size, "all_reduce moves {}", reduced);
          for (std::int64_t i = 0; i < memory.numel(); ++i) {
            const bool inside = offset <= i && i < offset + count;
            const float right = static_cast<float>(inside ? 15'000 * world * (world + 1) + world * i
                                                          : (rank + 1) * 30'000 + i);
            test::expect(memory.data<float>()[i] == right, "element {}: {}, not {}", i,
                         memory.data<float>()[i], right);
          }
          communicator.barrier("all have read").wait();
          const Tensor part = Tensor::full({partition(count, world, rank).size()}, rank + 0.5);
          const std::uint64_t gathered =
              moved([&] { communicator.all_gather(part, buffer, "parts").wait(); });
          test::expect(gathered == others * size, "all_gather moves {}", gathered);
          for (int r = 0; r < world; ++r) {
            const Range range = partition(count, world, r);
            for (std::int64_t i = range.begin; i < range.end; ++i)
              test::expect(buffer.data<float>()[i] == static_cast<float>(r + 0.5), "part {}: {}", r,
                           buffer.data<float>()[i]);
          }
          for (const std::int64_t i : {offset - 1, offset + count})
            if (i >= 0)
              test::expect(memory.data<float>()[i] == static_cast<float>((rank + 1) * 30'000 + i),
                           "beside it");
        });
      }
}
