// Collectives in the simulated world: orders, delays and losses that threads never show.

#include <doctest/doctest.h>

#include <random>

#include "dist/collectives/exercise.h"
#include "lockstep/dist/simulated/simulated_world.h"
#include "support/drill.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::dist::testing;

namespace {

// One random world and what it does; a pure function of the seed.
struct Scenario {
  explicit Scenario(std::uint64_t seed) : random(seed * 0x9e3779b97f4a7c15u + 1) {
    sim.seed = seed;
    sim.size = static_cast<int>(1 + below(7));
    sim.channel_bytes = std::array{48, 200, 1000, 4096}[below(4)];
    sim.max_delay = Seconds(std::array{0.0, 1e-6, 1e-4, 0.1}[below(4)]);
    sim.shared_memory = below(2) == 0;
    sim.switch_one_in = static_cast<int>(2 + below(8));
    options = options_for(every_algorithm[below(every_algorithm.size())], sim.size);
    if (below(3) == 0) add_fault(SimFault::Kind::lost, {});
    if (below(4) == 0) add_fault(SimFault::Kind::stall, Seconds(static_cast<double>(below(50))));
    for (std::uint64_t k = 1 + below(5); k > 0; --k)
      calls.push_back({below(5), below(4), below(60)});
  }

  std::uint64_t below(std::uint64_t n) { return random() % n; }
  void add_fault(SimFault::Kind kind, Seconds duration) {
    sim.faults.push_back({static_cast<int>(below(static_cast<std::uint64_t>(sim.size))),
                          1 + below(kind == SimFault::Kind::lost ? 300 : 100), kind, duration});
  }

  struct Call {
    std::uint64_t operation, style, count;
  };
  std::mt19937_64 random;
  SimOptions sim;
  CommunicatorOptions options;
  std::vector<Call> calls;
};

// Three all-reduces under way at once, progressed and waited for in this rank's own order.
void overlapping(Communicator& comm, std::int64_t count, std::mt19937_64& random) {
  std::array<Tensor, 3> tensors;
  std::array<Work, 3> works;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    tensors[k] = k == 1 ? comm.allocate(count, DType::f32) : Tensor::empty({count});
    fill<float>(tensors[k], comm.rank());
    works[k] = comm.all_reduce(tensors[k], "overlapping");
    for (std::uint64_t polls = random() % 4; polls > 0; --polls)
      works[random() % (k + 1)].progress();
  }
  for (int waits = 0; waits < 3; ++waits) works[random() % 3].wait();
  for (Work& work : works) work.wait();
  for (const Tensor& tensor : tensors) {
    expect_elements<float>("overlapping", comm.rank(), tensor, 0,
                           [&](std::int64_t i) { return sum_of_values(comm.size(), i); });
  }
}

void act(Communicator& comm, const Scenario::Call& call, std::mt19937_64& random) {
  const auto count = static_cast<std::int64_t>(call.count);
  switch (call.operation) {
    case 0: return exercise_reduce_scatter<double>(comm, count);
    case 1: return exercise_all_gather<std::int32_t>(comm, count);
    case 2:
      return exercise_broadcast<std::int64_t>(comm, count, static_cast<int>(count % comm.size()));
    case 3: return overlapping(comm, count, random);
    default: break;
  }
  if (call.style == 0) return comm.barrier("barrier").wait();
  exercise_all_reduce<float>(
      comm, call.style == 1 ? Tensor::empty({count}) : comm.allocate(count, DType::f32));
}

SimReport play(const Scenario& scenario) {
  return simulate(scenario.sim, [&](int rank, std::unique_ptr<Transport> transport) {
    HostCommunicator comm(std::move(transport), scenario.options);
    std::mt19937_64 random(scenario.sim.seed * 8 + static_cast<std::uint64_t>(rank));
    for (const Scenario::Call& call : scenario.calls) act(comm, call, random);
  });
}

// What is wrong with the outcome, or nothing.
std::string verdict(const Scenario& scenario, const SimReport& report) {
  int victim = -1;
  for (int r = 0; r < scenario.sim.size; ++r) {
    if (report.lost[static_cast<std::size_t>(r)]) victim = r;
  }
  for (int r = 0; r < scenario.sim.size; ++r) {
    const std::exception_ptr& error = report.errors[static_cast<std::size_t>(r)];
    if (!error) continue;
    const std::string message = message_of(error);
    try {
      std::rethrow_exception(error);
    } catch (const PeerError&) {
      if (victim >= 0 &&
          message.find(fmt::format("rank {} is gone", victim)) != std::string::npos) {
        continue;
      }
    } catch (...) {
    }
    return fmt::format("rank {} ended with: {} (lost rank: {})", r, message, victim);
  }
  if (report.end > Seconds(200))
    return fmt::format("took {} s of virtual time", report.end.count());
  return "";
}

}  // namespace

TEST_CASE("drill collectives: worlds with delays, reordered progress, stalls and a lost rank" *
          doctest::test_suite("slow")) {
  int losses = 0, survivors_hit = 0;
  const std::uint64_t runs = test::drill(300, [&](std::uint64_t seed) {
    const Scenario scenario(seed);
    const SimReport report = play(scenario);
    const std::string wrong = verdict(scenario, report);
    check<Error>(wrong.empty(), "{}", wrong);
    for (const bool lost : report.lost) losses += lost;
    for (const auto& error : report.errors) survivors_hit += error != nullptr;
  });
  if (runs >= 300) {  // the faults do strike
    CHECK(losses > 20);
    CHECK(survivors_hit > losses);
  }
}

TEST_CASE("simulated: the same seed replays the same run, another seed another") {
  for (const std::uint64_t seed : {3, 14, 15, 92}) {
    Scenario scenario(seed);
    scenario.sim.size = 4;
    scenario.options = options_for(scenario.options.algorithm, 4);
    scenario.sim.faults = {{1, 60, SimFault::Kind::lost, {}},
                           {2, 20, SimFault::Kind::stall, Seconds(1)}};
    const SimReport once = play(scenario), again = play(scenario);
    CHECK(once.trace == again.trace);
    CHECK(once.end == again.end);
    for (std::size_t r = 0; r < 4; ++r)
      CHECK(message_of(once.errors[r]) == message_of(again.errors[r]));
    ++scenario.sim.seed;
    CHECK(play(scenario).trace != once.trace);
  }
}

TEST_CASE("simulated: direct gives the same bits as on any other transport") {
  for (const bool shared_memory : {false, true}) {
    const SimReport report =
        simulate({.seed = 5, .size = 5, .shared_memory = shared_memory, .faults = {}},
                 [](int, std::unique_ptr<Transport> transport) {
                   HostCommunicator comm(std::move(transport), {.algorithm = Algorithm::two_shot});
                   exercise_tree_order(comm, Tensor::empty({403}));
                   exercise_tree_order(comm, comm.allocate(403, DType::f32));
                 });
    for (const auto& error : report.errors) CHECK(message_of(error) == "");
  }
}

TEST_CASE("simulated: every call of every rank can be its last") {
  // The lost rank strikes at each of its calls in turn, until it survives them all.
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::two_shot}) {
    for (const int victim : {0, 1, 2}) {
      for (std::uint64_t at_call = 1;; ++at_call) {
        SimOptions sim{
            .seed = at_call, .size = 3, .faults = {{victim, at_call, SimFault::Kind::lost, {}}}};
        const SimReport report = simulate(sim, [&](int, std::unique_ptr<Transport> transport) {
          HostCommunicator comm(std::move(transport), {.algorithm = algorithm});
          exercise_all_reduce<float>(comm, comm.allocate(10, DType::f32));
          exercise_all_reduce<float>(comm, Tensor::empty({10}));
          comm.barrier("end").wait();
        });
        for (const auto& error : report.errors) {
          const std::string message = message_of(error);
          CAPTURE(message);
          CHECK((!error ||
                 message.find(fmt::format("rank {} is gone", victim)) != std::string::npos));
        }
        if (!report.lost[static_cast<std::size_t>(victim)]) {
          CHECK(at_call > 10);
          break;
        }
      }
    }
  }
}

TEST_CASE("simulated: a rank that never comes ends in a timeout that names it, in virtual time") {
  const SimReport report =
      simulate({.size = 2, .faults = {}}, [](int rank, std::unique_ptr<Transport> transport) {
        HostCommunicator comm(std::move(transport));
        const Tensor tensor = Tensor::zeros({5});
        comm.all_reduce(tensor, "bucket 0").wait();
        if (rank == 0) comm.all_reduce(tensor, "bucket 1").wait();
        unsigned k = 0;
        while (rank == 1) comm.transport().relax(k++);
      });
  CHECK(
      message_of(report.errors[0]) ==
      "[all_reduce] rank 0, #1 'bucket 1': timed out after 60 s, waiting for rank 1 (step 1 of 2); "
      "this rank last finished #0 'bucket 0'; rank 1 was last heard from in #0 'bucket 0'");
  CHECK(message_of(report.errors[1]) ==
        "rank 0 gave up in all_reduce #1 'bucket 1': timed out after 60 s, waiting for rank 1 "
        "(step 1 of 2); this rank last finished #0 'bucket 0'; rank 1 was last heard from in #0 "
        "'bucket 0'");
  CHECK(report.end > Seconds(60));
  CHECK(report.end < Seconds(65));
}

TEST_CASE("simulated: a stall shorter than the timeout is survived, a longer one is reported") {
  for (const double stall : {50.0, 70.0}) {
    const SimOptions sim{.size = 3, .faults = {{1, 10, SimFault::Kind::stall, Seconds(stall)}}};
    const SimReport report = simulate(sim, [](int, std::unique_ptr<Transport> transport) {
      HostCommunicator comm(std::move(transport));
      exercise_all_reduce<float>(comm, comm.allocate(100'000, DType::f32));
    });
    for (const auto& error : report.errors) CHECK((error != nullptr) == (stall > 60));
  }
}

TEST_CASE("simulated: a call may take longer than the timeout while bytes move") {
  const SimOptions sim{.size = 3, .max_delay = Seconds(2)};
  const SimReport report = simulate(sim, [](int, std::unique_ptr<Transport> transport) {
    HostCommunicator comm(std::move(transport), {.timeout = Seconds(10)});
    exercise_all_reduce<float>(comm, Tensor::zeros({50'000}));
  });
  for (const auto& error : report.errors) CHECK(message_of(error) == "");
  CHECK(report.end > Seconds(20));
}

TEST_CASE("simulated: allocate names a rank that is gone, and differing sizes") {
  const SimOptions sim{.size = 3, .faults = {{2, 1, SimFault::Kind::lost, {}}}};
  const SimReport lost = simulate(sim, [](int, std::unique_ptr<Transport> transport) {
    HostCommunicator comm(std::move(transport));
    comm.allocate(8, DType::f32);
  });
  CHECK(message_of(lost.errors[0]).find("[allocate] rank 0, 8 f32: ") == 0);
  CHECK(message_of(lost.errors[0]).find("rank 2 is gone") != std::string::npos);

  const SimReport differ =
      simulate({.size = 2, .faults = {}}, [](int rank, std::unique_ptr<Transport> transport) {
        HostCommunicator comm(std::move(transport));
        comm.allocate(8 + rank, DType::f32);
      });
  for (const auto& error : differ.errors) {
    CHECK(message_of(error).find("asks for") != std::string::npos);
  }
}

TEST_CASE("simulated: a link of some bytes per second carries them one after another") {
  // Rank 0 sends 1000 bytes, computes for 3 s, and sends 500 more, when the link is free again.
  std::vector<double> arrived;
  const SimReport report =
      simulate({.seed = 3, .size = 2, .max_delay = Seconds(0), .bytes_per_second = 500},
               [&](int rank, std::unique_ptr<Transport> transport) {
                 for (const std::size_t count : {1000, 500}) {
                   std::vector<std::byte> bytes(count);
                   for (std::size_t done = 0; done < count;) {
                     const std::span rest = std::span(bytes).subspan(done);
                     const std::size_t some =
                         rank == 0 ? transport->send(1, rest) : transport->receive(0, rest);
                     if (some == 0) transport->relax(1);
                     done += some;
                   }
                   if (rank == 0)
                     compute(*transport, Seconds(3));
                   else
                     arrived.push_back(transport->now().count());
                 }
               });
  for (const auto& error : report.errors) CHECK(message_of(error) == "");
  REQUIRE(arrived.size() == 2);
  CHECK(arrived[0] == doctest::Approx(2).epsilon(1e-4));
  CHECK(arrived[1] == doctest::Approx(4).epsilon(1e-4));
}

TEST_CASE(
    "simulated: some of the ranks meet under a name, and a rank that was killed is gone there") {
  const SimReport report =
      simulate({.seed = 4, .size = 4}, [&](int rank, std::unique_ptr<Transport> home) {
        CHECK_THROWS_WITH_AS(transport_among(*home, "others", {(rank + 1) % 4}),
                             doctest::Contains("none of the members of 'others'"), UsageError);
        if (rank == 2) return;
        {
          const auto transport = transport_among(*home, "first", {0, 1, 3});
          CHECK(transport->size() == 3);
          CHECK(transport->rank() == (rank == 3 ? 2 : rank));
          HostCommunicator comm(transport_among(*home, "comm", {0, 1, 3}));
          exercise_all_reduce<float>(comm, Tensor::empty({10}));
          CHECK_THROWS_WITH_AS(transport_among(*home, "first", {rank}),
                               doctest::Contains("other members of 'first'"), UsageError);
        }
        if (rank == 0) {
          compute(*home, Seconds(1));
          kill(*home, 1);
        } else if (rank == 1) {
          compute(*home, Seconds(5));
          FAIL("rank 1 was killed");
        }
        compute(*home, Seconds(2));
        HostCommunicator last(transport_among(*home, "last", {0, 1, 3}));
        CHECK_THROWS_AS(last.barrier("b").wait(), PeerError);
      });
  for (const auto& error : report.errors) CHECK(message_of(error) == "");
  CHECK(report.lost == std::vector<bool>{false, true, false, false});
}

TEST_CASE("simulated: nothing passes a partition while it lasts") {
  // Rank 0 sends to both others at 1 s; what is for rank 2 arrives when the partition ends.
  std::vector<double> arrived(3);
  const SimReport report =
      simulate({.seed = 6, .size = 3, .partitions = {{Seconds(0.5), Seconds(3), {2}}}},
               [&](int rank, std::unique_ptr<Transport> transport) {
                 std::byte byte{};
                 if (rank == 0) {
                   compute(*transport, Seconds(1));
                   for (const int to : {1, 2})
                     while (transport->send(to, std::span(&byte, 1)) == 0) transport->relax(1);
                   compute(*transport, Seconds(5));
                 } else {
                   while (transport->receive(0, std::span(&byte, 1)) == 0) transport->relax(1);
                   arrived[index(rank)] = transport->now().count();
                 }
               });
  for (const auto& error : report.errors) CHECK(message_of(error) == "");
  CHECK(arrived[1] == doctest::Approx(1).epsilon(0.01));
  CHECK(arrived[2] == doctest::Approx(3).epsilon(0.01));
}
