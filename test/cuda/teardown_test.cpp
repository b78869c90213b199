// How worlds end while tensors on GPUs are on their way: the teardown matrix of every engine, and
// ranks that die before their engines were used. (CUDA IPC and NCCL may be simulated ones.)

#include "dist/collectives/teardown.h"

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "cuda/engines.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/lockstep.h"

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
// Rank 0's stream waits for rank 1, which first ends something: nothing of that may wait for the
// whole GPU, for rank 0's work there ends only when rank 1 has called.
TEST_CASE("GPU teardown: what ends on one rank waits for no stream that waits for it") {
  const Device device{*gpu::kind(), 0};
  const std::pair<std::string, std::function<void(World&)>> ends[] = {
      {"a stream", [&](World&) { (void)Stream::create(device); }},
      {"pinned memory", [&](World&) { (void)gpu::allocate_pinned(100); }},
      {"a tensor", [&](World&) { (void)Tensor::full({1000}, 1, DType::f32, device); }},
      {"a thread",
       [&](World&) {
         std::thread([&] {
           (void)matmul(Tensor::full({2, 2}, 1, DType::f32, device),
                        Tensor::full({2, 2}, 1, DType::f32, device));
         }).join();
       }},
      {"a recorded step",
       [&](World&) {
         const Tensor x = Tensor::zeros({4}, DType::f32, device);
         StepGraph step([&] { x.fill(1); }, device);
         for (int i = 0; i < 3; ++i) step();
         (void)x.to_vector<float>();
       }},
      {"a DistributedDataParallel of a world of one",
       [&](World& alone) {
         const Parameter w(Tensor::full({4}, 1, DType::f32, device), "w");
         const dist::DistributedDataParallel ddp({w}, {}, alone);
         Tape tape;
         tape.backward(sum(mul(w, w)));
       }},
  };
  for (const auto& [name, end] : ends) {
    CAPTURE(name);
    std::atomic<bool> called = false;
    run_threads(2, {.transport = "ipc"}, [&](World& world) {
      std::optional<World> alone = world.split(world.rank());
      const Tensor data = Tensor::full({8}, 1, DType::f32, device);
      world.communicator().all_reduce(data, "first").wait();
      end(*alone);  // what is only made at the first time, before a rank waits
      world.communicator().barrier("ready").wait();
      if (world.rank() == 1) {
        while (!called) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        end(*alone);
      }
      dist::Work second = world.communicator().all_reduce(data, "second");
      called = true;
      second.wait();
      check<Error>(data.to_vector<float>()[7] == 4, "{}", data.to_vector<float>()[7]);
    });
  }
}

}  // namespace lockstep
