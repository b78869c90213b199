// Whole trainings on GPUs, or on simulated ones: as test/dist/ddp/training_property_test.cpp, with
// recorded steps and deferred verdicts, too.

#include <doctest/doctest.h>

#include "dist/ddp/training_case.h"
#include "lockstep/core/gpu/gpu.h"
#include "support/drill.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::dist::testing;

TEST_CASE("drill training-gpu: any training on GPUs equals one process on the union") {
  test::drill(24, [&](std::uint64_t seed) {
    const Training t = draw_training(seed, std::min(4, gpu::count()), true);
    const auto right = train_alone(t);
    const JoinOptions engines[] = {{.comm = "auto", .transport = "ipc"},
                                   {.comm = "ring", .transport = "ipc"},
                                   {.comm = "nccl"},
                                   {.comm = "nccl-direct"}};
    const JoinOptions& engine = engines[seed % 4];
    run_threads(t.world, engine, [&](World& world) {
      const Device device{*gpu::kind(), world.rank() % gpu::count()};
      TrainingRank(t, world.communicator(), device).run(right);
    });
  });
}
