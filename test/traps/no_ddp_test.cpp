// A DistributedDataParallel that was forgotten: each rank would train a model of its own, and all
// would end well. Who means that says so.

#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <thread>

#include "lockstep/lockstep.h"
#include "support/forked_ranks.h"
#include "support/small_models.h"
#include "support/temporary_folder.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// One step of a model that no DDP knows.
struct Alone {
  Parameter w = scalar("w", 1);
  optim::SGD optimizer{{w}, {.lr = 0.25}};
  void backward() const {
    Tape tape;
    tape.backward(3 * sum(w));
  }
  void step() {
    backward();
    optimizer.step();
    optimizer.zero_grad();
  }
};

constexpr const char* alone_text = "'w' is under no DistributedDataParallel, and this is rank ";

}  // namespace

TEST_CASE("trap: no DistributedDataParallel was made, on any number of ranks above 1") {
  for (const int ranks : {2, 3}) {
    const auto messages = messages_on_threads(ranks, [](World&) {
      Alone model;
      model.step();
    });
    REQUIRE(messages.size() == static_cast<std::size_t>(ranks));
    for (const std::string& message : messages)
      CHECK(message.find(alone_text) != std::string::npos);
    CHECK(messages[1].find(fmt::format("rank 1 of {}", ranks)) != std::string::npos);
  }
}

TEST_CASE("trap: no DistributedDataParallel: refused before anything has changed") {
  check_all_well(messages_on_threads(2, [](World& world) {
    Alone model;
    model.backward();
    expect_error<StateError>(alone_text, [&] { model.optimizer.step(); });
    expect(model.w.value().item() == 1, "stepped");
    optim::GradScaler scaler({.scale = 1});
    expect_error<StateError>(alone_text, [&] { scaler.step(model.optimizer); });
    dist::DistributedDataParallel ddp({model.w}, {}, world);  // what was forgotten
    model.step();
    expect(model.w.value().item() == 0.25, "{}", model.w.value().item());
  }));
}

TEST_CASE("no DistributedDataParallel, and that is meant: local steps, and what is kept local") {
  check_all_well(messages_on_threads(2, [](World& world) {
    Alone local;
    local.backward();
    local.optimizer.step(optim::local);
    expect(local.w.value().item() == 0.25, "{}", local.w.value().item());
    Alone kept;
    kept.w.keep_local();
    kept.step();
    expect(kept.w.value().item() == 0.25, "{}", kept.w.value().item());
    Alone idle;  // nothing is stepped
    idle.optimizer.step();
    idle.w.set_requires_grad(false);
    idle.optimizer.step();
    // A search in which each group trains a model of its own.
    const World own = *world.split(world.rank());
    Alone of_group;
    of_group.backward();
    expect_error<StateError>(alone_text, [&] { of_group.optimizer.step(); });
    of_group.optimizer.zero_grad();
    const dist::DistributedDataParallel ddp({of_group.w}, {}, own);
    of_group.step();
    expect(of_group.w.value().item() == 0.25, "{}", of_group.w.value().item());
  }));
}

TEST_CASE("no DistributedDataParallel: worlds of 1, worlds that have ended, and other threads") {
  check_all_well(messages_on_threads(1, [](World&) {
    Alone model;
    model.step();
  }));
  check_all_well(messages_on_threads(2, [](World& world) {
    expect(World::living().has_value() && World::living()->size == 2, "its world");
    std::jthread([] {  // of a program whose other threads are ranks
      Alone model;
      model.step();
    })
        .join();
    std::optional<World> group = world.split(0);
    expect(World::living()->rank == world.rank(), "its rank");
    group.reset();
    expect(World::living().has_value(), "the world is there");
  }));
  CHECK(!World::living());
  Alone model;
  model.step();
}

TEST_CASE("no DistributedDataParallel: processes, in all of their threads, until the world ends") {
  const TemporaryFolder folder;
  const auto outcomes = run_processes(2, [&](int rank) {
    set_rank_environment(rank, 2, "unix:" + folder / "store");
    std::optional<World> world(World::join());
    Alone model;
    model.backward();
    const auto refused = [&] {
      expect_error<StateError>(alone_text, [&] { model.optimizer.step(); });
    };
    refused();
    std::exception_ptr error;
    std::jthread([&] {
      try {
        refused();
      } catch (...) {
        error = std::current_exception();
      }
    }).join();
    if (error) std::rethrow_exception(error);
    const World copy = *world;
    world.reset();
    refused();
    world = copy;
    World moved = std::move(*world);
    refused();
  });
  for (const Outcome& outcome : outcomes) CHECK(outcome.message == "");
  const auto ended = run_processes(2, [&](int rank) {
    set_rank_environment(rank, 2, "unix:" + folder / "again");
    { const World world = World::join(); }
    Alone model;
    model.step();
  });
  for (const Outcome& outcome : ended) CHECK(outcome.message == "");
}
