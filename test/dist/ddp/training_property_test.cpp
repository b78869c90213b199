// Whole trainings: any algorithm, hook, buffers, early optimizer steps and ends of data give the
// parameters of one process. On GPUs: test/cuda/training_property_test.cpp.

#include <doctest/doctest.h>

#include "dist/collectives/exercise.h"
#include "dist/ddp/training_case.h"
#include "lockstep/dist/collectives/choice.h"
#include "support/drill.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::dist::testing;

namespace {

/// The names of JoinOptions::comm that are algorithms of host communicators.
std::vector<std::string> algorithm_names() {
  std::vector<std::string> names = communicator_names();
  std::erase_if(names, [](const std::string& name) { return !algorithm_named(name); });
  return names;
}

}  // namespace

TEST_CASE("drill training-simulated: any training in a simulated world equals one process") {
  const std::vector<std::string> names = algorithm_names();
  REQUIRE(names.size() > 3);
  test::drill(60, [&](std::uint64_t seed) {
    const Training t = draw_training(seed, 5, false);
    const auto right = train_alone(t);
    const std::string& name = names[seed % names.size()];
    test::run_simulated(
        {.seed = seed, .size = t.world, .shared_memory = seed / 8 % 2 == 0},
        [&](Communicator& c) { TrainingRank(t, c, Device{}).run(right); },
        options_for(*algorithm_named(name), t.world));
  });
}

TEST_CASE("drill training-threads: any training on threads equals one process on the union" *
          doctest::test_suite("slow")) {
  const std::vector<std::string> names = algorithm_names();
  test::drill(30, [&](std::uint64_t seed) {
    const Training t = draw_training(seed, 5, false);
    const auto right = train_alone(t);
    const std::string& name = names[seed % names.size()];
    run_threads(t.world, {.comm = name},
                [&](World& world) { TrainingRank(t, world.communicator(), Device{}).run(right); });
  });
}
