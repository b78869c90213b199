// How worlds end while tensors on GPUs are on their way: the teardown matrix of every engine, and
// ranks that die before their engines were used. (CUDA IPC and NCCL may be simulated ones.)

#include "dist/collectives/teardown.h"

#include <doctest/doctest.h>

#include "cuda/engines.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/collectives/object_collectives.h"

namespace lockstep {
namespace {

using test::contains;
using test::enough_gpus;
using test::gpu_engines;
using test::GpuEngine;
using test::Outcome;

// With NCCL each rank has a GPU of its own.
Device own_device(const World& world) { return {*gpu::kind(), world.rank() % gpu::count()}; }

TEST_CASE("GPU teardown: the matrix" * doctest::test_suite("slow")) {
  for (const GpuEngine& engine : gpu_engines) {
    if (!enough_gpus(test::teardown_ranks, engine)) continue;
    CAPTURE(engine.comm);
    CAPTURE(engine.transport);
    // What has begun on a GPU is waited for, until the timeout.
    test::tear_down_processes(options_of(engine, 2), dist::max_ranks, 10, own_device);
  }
}

// What the first use of an engine begins with, of which rank 1 takes part in so many steps: the
// ranks tell each other where their GPUs are, and then exchange what connects them.
void begin_to_use(const World& world, int steps) {
  for (int k = 0; k < steps; ++k) (void)dist::gather_text(world.communicator(), "");
}

TEST_CASE("GPU teardown: a rank killed before the first use of its engine, or in it") {
  for (const GpuEngine& engine : gpu_engines)
    for (const int steps : {0, 1, 2}) {
      if (!enough_gpus(3, engine)) continue;
      if (engine.transport == "ipc" && steps == 2) continue;  // then it is connected
      CAPTURE(engine.comm);
      CAPTURE(engine.transport);
      CAPTURE(steps);
      const test::TemporaryFolder folder;
      const auto outcomes = test::run_processes(
          3,
          [&](int rank) {
            test::set_rank_environment(rank, 3, "unix:" + folder / "store");
            const World world = World::join(options_of(engine, 60));
            if (rank == 1) {
              begin_to_use(world, steps);
              ::raise(SIGKILL);
            }
            const Tensor data = Tensor::zeros({100}, DType::f32, own_device(world));
            world.communicator().all_reduce(data, "first").finish();
          },
          30);
      CHECK(outcomes[1].signal == SIGKILL);
      for (const std::size_t r : {0u, 2u}) {
        const Outcome& outcome = outcomes[r];
        INFO("rank ", r, " after ", outcome.seconds, " s: ", outcome.kind, " ", outcome.message);
        CHECK(outcome.kind == "peer");
        CHECK(contains(outcome.message, "rank 1"));
        CHECK(outcome.seconds < 10);
      }
    }
}

TEST_CASE("GPU teardown: a rank killed after it has called, before its GPU has done it") {
  for (const GpuEngine& engine : gpu_engines) {
    if (!enough_gpus(3, engine)) continue;
    CAPTURE(engine.comm);
    CAPTURE(engine.transport);
    const test::TemporaryFolder folder;
    const auto outcomes = test::run_processes(
        3,
        [&](int rank) {
          test::set_rank_environment(rank, 3, "unix:" + folder / "store");
          const World world = World::join(options_of(engine, 60));
          const Device device = own_device(world);
          dist::testing::exercise<float>(world.communicator(), 10, device);
          const Tensor data = Tensor::zeros({100}, DType::f32, device);
          dist::Work work = world.communicator().all_reduce(data, "last");
          if (rank == 1) ::raise(SIGKILL);
          work.finish();
          world.communicator().barrier("its part may have been done").wait();
        },
        30);
    CHECK(outcomes[1].signal == SIGKILL);
    for (const std::size_t r : {0u, 2u}) {
      const Outcome& outcome = outcomes[r];
      INFO("rank ", r, " after ", outcome.seconds, " s: ", outcome.kind, " ", outcome.message);
      CHECK(outcome.kind == "peer");
      CHECK(contains(outcome.message, "rank 1"));
      CHECK(outcome.seconds < 10);
    }
  }
}

}  // namespace
}  // namespace lockstep
