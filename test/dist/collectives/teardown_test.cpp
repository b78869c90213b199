// How worlds end: the teardown matrix on every engine for tensors on the host, and ranks that die
// before their connections were used.

#include "teardown.h"

#include <doctest/doctest.h>

#include <chrono>

namespace lockstep {
namespace {

using test::contains;
using test::Outcome;

// No end may take a timeout: they are far longer than the limits.
const JoinOptions patient{.timeout = dist::Seconds(60)};

JoinOptions over(const std::string& transport) {
  JoinOptions options = patient;
  options.transport = transport;
  return options;
}

TEST_CASE("teardown: threads") {
  for (const test::Teardown& teardown : test::teardown_matrix()) {
    const auto start = std::chrono::steady_clock::now();
    test::Stage stage;
    std::vector<Outcome> outcomes(test::teardown_ranks);
    const auto note = [](Outcome& outcome, const std::exception& error) {
      outcome.kind = test::kind_of(error);
      outcome.message = error.what();
    };
    const auto body = [&](World& world) {
      Outcome& outcome = outcomes[static_cast<std::size_t>(world.rank())];
      outcome.code = 0;
      std::exception_ptr error;
      try {
        error = test::take_part(teardown, world, {}, stage, [] {});  // a thread can but leave
      } catch (const Error& thrown) {
        note(outcome, thrown);
        world.abort(thrown.what());  // as run_threads does, but before the others look
        stage.torn_down();
        throw;
      }
      if (world.rank() == 1) stage.torn_down();
      if (error) try {
          std::rethrow_exception(error);
        } catch (const Error& thrown) {
          note(outcome, thrown);
        }
    };
    try {
      run_threads(test::teardown_ranks, patient, body);
    } catch (const Error&) {
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    for (Outcome& outcome : outcomes) outcome.seconds = seconds.count();
    test::check_teardown(teardown, outcomes, 5);
  }
}

TEST_CASE("teardown: shm") { test::tear_down_processes(over("shm")); }
TEST_CASE("teardown: tcp") { test::tear_down_processes(over("tcp")); }
TEST_CASE("teardown: shm+tcp" * doctest::test_suite("slow")) {
  test::tear_down_processes(over(""), 2);
}

TEST_CASE("teardown: a rank killed between the rendezvous and the first use of its connections") {
  struct Row {
    std::string transport;
    int ranks_per_node;
  };
  for (const Row& row : {Row{"shm", dist::max_ranks}, Row{"tcp", dist::max_ranks}, Row{"", 2}})
    for (const int victim : {0, 1, 3}) {
      CAPTURE(row.transport);
      CAPTURE(row.ranks_per_node);
      CAPTURE(victim);
      const test::TemporaryFolder folder;
      const std::string store =
          row.ranks_per_node < 4 ? test::free_address() : "unix:" + folder / "store";
      const auto outcomes = test::run_processes(4, [&](int rank) {
        test::set_rank_environment(rank, 4, store, row.ranks_per_node);
        const World world = World::join(over(row.transport));
        if (rank == victim) ::raise(SIGKILL);
        dist::testing::exercise<float>(world.communicator(), 1001);
      });
      for (int r = 0; r < 4; ++r) {
        const Outcome& outcome = outcomes[static_cast<std::size_t>(r)];
        INFO("rank ", r, " after ", outcome.seconds, " s: ", outcome.kind, " ", outcome.message);
        CHECK(outcome.seconds < 10);
        if (r == victim) {
          CHECK(outcome.signal == SIGKILL);
        } else {
          CHECK(outcome.kind == "peer");
          CHECK(contains(outcome.message, fmt::format("rank {}", victim)));
        }
      }
    }
}

}  // namespace
}  // namespace lockstep
