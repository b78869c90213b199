// Collectives between GPUs: the engines of dist/gpu/device_engine.h among ranks that are threads
// and processes, with what can go wrong. (In the simulator: simt has CUDA IPC and NCCL, too.)

#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <optional>
#include <thread>

#include "cuda/engines.h"
#include "dist/collectives/exercise.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/dist/world/world.h"
#include "support/forked_ranks.h"

namespace lockstep {
namespace {

using dist::testing::exercise;
using dist::testing::exercise_tree_order;
using test::contains;
using test::enough_gpus;
using test::expect;
using test::gpu_engines;
using test::GpuEngine;

// With NCCL each rank has a GPU of its own; under ipc neighbours share one.
Device device_of(const World& world, const GpuEngine& engine) {
  const bool shared = engine.transport == "ipc";
  return {*gpu::kind(), (shared ? world.rank() / 2 : world.rank()) % gpu::count()};
}

void exercise_all(const World& world, const GpuEngine& engine) {
  dist::Communicator& comm = world.communicator();
  const Device device = device_of(world, engine);
  for (const std::int64_t count : {0, 1, 7, 1001}) exercise<float>(comm, count, device);
  exercise<double>(comm, 257, device);
  exercise<std::int32_t>(comm, 31, device);
  exercise<std::int64_t>(comm, 77, device);
  exercise<float>(comm, 100);  // on the host, in between
  if (engine.tree) {
    exercise_tree_order(comm, Tensor::empty({999}, DType::f32, device));
    const Tensor region = comm.allocate(999, DType::f32, device);
    expect(region.device() == device, "allocated on {}", region.device().to_string());
    exercise_tree_order(comm, region);
    exercise_tree_order(comm, region.slice(13, 400));
  }
}

// Three at once, in one piece of allocated memory, waited for in another order.
void several_in_flight(const World& world, const GpuEngine& engine) {
  const Device device = device_of(world, engine);
  const Tensor memory = world.communicator().allocate(300, DType::f32, device);
  std::array<dist::Work, 3> works;
  for (int k = 0; k < 3; ++k)
    dist::testing::fill<float>(memory.slice(100 * k, 100 * k + 100), world.rank());
  for (int k = 0; k < 3; ++k)
    works[static_cast<std::size_t>(k)] = world.communicator().all_reduce(
        memory.slice(100 * k, 100 * k + 100), fmt::format("piece {}", k));
  for (const std::size_t k : {2u, 0u, 1u}) works[k].wait();
  for (int k = 0; k < 3; ++k)
    dist::testing::expect_elements<float>(
        "in flight", world.rank(), memory.slice(100 * k, 100 * k + 100), 0,
        [&](std::int64_t i) { return dist::testing::sum_of_values(world.size(), i); });
}

TEST_CASE("GPU communicators: no engine is left out in the simulator") {
  if (gpu::kind() != Device::Kind::sim) return;
  (void)gpu::count();  // CUDA is in use, as behind the first engine of any case
  for (const GpuEngine& engine : gpu_engines) CHECK(enough_gpus(4, engine));
}

TEST_CASE("GPU communicators: all operations among threads") {
  for (const GpuEngine& engine : gpu_engines)
    for (int size = 1; size <= 8; ++size) {
      if (!enough_gpus(size, engine)) continue;
      CAPTURE(engine.comm);
      CAPTURE(engine.transport);
      CAPTURE(size);
      run_threads(size, options_of(engine, 30), [&](World& world) {
        exercise_all(world, engine);
        several_in_flight(world, engine);
      });
    }
}

TEST_CASE("GPU communicators: all operations among processes") {
  for (const GpuEngine& engine : gpu_engines)
    for (const int size : {2, 3, 5}) {
      if (!enough_gpus(size, engine)) continue;
      CAPTURE(engine.comm);
      CAPTURE(engine.transport);
      CAPTURE(size);
      const test::TemporaryFolder folder;
      test::check_all_well(test::run_processes(size, [&](int rank) {
        test::set_rank_environment(rank, size, "unix:" + folder / "store");
        const World world = World::join(options_of(engine, 30));
        exercise_all(world, engine);
        several_in_flight(world, engine);
      }));
    }
}

TEST_CASE("GPU communicators: groups") {
  for (const GpuEngine& engine : gpu_engines) {
    if (!enough_gpus(4, engine)) continue;
    CAPTURE(engine.comm);
    run_threads(4, options_of(engine, 30), [&](World& world) {
      const auto pair = world.split(world.rank() % 2);
      exercise<float>(pair->communicator(), 501, device_of(world, engine));
      exercise<float>(world.communicator(), 501, device_of(world, engine));
    });
  }
}

TEST_CASE("GPU communicators: a step that is recorded replays its collectives") {
  for (const GpuEngine& engine : gpu_engines) {
    if (!enough_gpus(3, engine)) continue;
    CAPTURE(engine.comm);
    run_threads(3, options_of(engine, 30), [&](World& world) {
      const Device device = device_of(world, engine);
      const Tensor x = Tensor::full({1000}, world.rank() + 1, DType::f32, device);
      const Tensor sum = world.communicator().allocate(1000, DType::f32, device);
      StepGraph step(
          [&] {
            sum.copy_from(x);
            world.communicator().all_reduce(sum, "recorded").wait();
          },
          device);
      for (int replay = 0; replay < 6; ++replay) {
        x.fill(world.rank() + 1 + 10 * replay);
        step();
        const float got = sum.to_vector<float>()[999];
        expect(got == static_cast<float>(6 + 30 * replay), "replay {} gave {}", replay, got);
      }
      expect(step.recordings() == 1, "{} recordings", step.recordings());
    });
  }
}

TEST_CASE("GPU communicators: replays go on among other calls, however many and large") {
  for (const GpuEngine& engine : gpu_engines) {
    if (!enough_gpus(2, engine)) continue;
    CAPTURE(engine.comm);
    run_threads(2, options_of(engine, 30), [&](World& world) {
      const Device device = device_of(world, engine);
      dist::Communicator& communicator = world.communicator();
      const Tensor x = Tensor::full({100}, world.rank() + 1, DType::f32, device);
      const Tensor sum = Tensor::zeros({100}, DType::f32, device);
      StepGraph step(
          [&] {
            sum.copy_from(x);
            communicator.all_reduce(sum, "recorded").wait();
          },
          device);
      for (int i = 0; i < 3; ++i) step();
      for (int i = 0; i < 300; ++i)
        communicator.all_reduce(Tensor::zeros({10}, DType::f32, device), "other").wait();
      exercise<float>(communicator, 50'001, device);
      for (int i = 0; i < 3; ++i) step();
      expect(sum.to_vector<float>()[99] == 3, "the replay gave {}", sum.to_vector<float>()[99]);
    });
  }
}

TEST_CASE("GPU communicators: an abort releases a replay that waits for a peer") {
  for (const GpuEngine& engine : gpu_engines) {
    if (!enough_gpus(2, engine)) continue;
    CAPTURE(engine.comm);
    std::array<std::optional<StepGraph>, 2> steps;  // they outlive the ranks: NCCL waits for that
    const auto train = [&](World& world) {
      const Device device = device_of(world, engine);
      const Tensor sum = Tensor::zeros({100}, DType::f32, device);
      const auto step = [&] { world.communicator().all_reduce(sum, "recorded").wait(); };
      StepGraph& graph = steps[static_cast<std::size_t>(world.rank())].emplace(step, device);
      for (int i = 0; i < 3; ++i) graph();
      if (world.rank() == 1) fail<DataError>("the disk is on fire");
      graph();
      world.communicator().barrier("after").wait();
    };
    CHECK_THROWS_WITH_AS(run_threads(2, options_of(engine, 10), train), "the disk is on fire",
                         DataError);
  }
}

TEST_CASE("GPU communicators: a group allocates while others are in a call of the world") {
  for (const GpuEngine& engine : gpu_engines) {
    if (!enough_gpus(4, engine)) continue;
    CAPTURE(engine.comm);
    run_threads(4, options_of(engine, 10), [&](World& world) {
      const Device device = device_of(world, engine);
      const auto pair = world.split(world.rank() % 2);
      const Tensor data = Tensor::full({10}, 1, DType::f32, device);
      world.communicator().all_reduce(data, "first").finish();
      if (world.rank() % 2 == 1) (void)pair->communicator().allocate(100, DType::f32, device);
      dist::Work work = world.communicator().all_reduce(data, "second");
      if (world.rank() % 2 == 0) (void)pair->communicator().allocate(100, DType::f32, device);
      work.finish();
      expect(data.to_vector<float>()[0] == 16, "{}", data.to_vector<float>()[0]);
    });
  }
}

TEST_CASE("GPU communicators: memory that ends while kernels read it, and is given out again") {
  for (const GpuEngine& engine : gpu_engines) {
    if (!enough_gpus(2, engine)) continue;
    CAPTURE(engine.comm);
    run_threads(2, options_of(engine, 30), [&](World& world) {
      const Device device = device_of(world, engine);
      std::vector<Tensor> seen;
      for (int i = 0; i < 30; ++i) {
        const Tensor memory = world.communicator().allocate(100, DType::f32, device);
        memory.fill(i);
        seen.push_back(Tensor::empty({100}, DType::f32, device));
        seen.back().copy_from(memory);
      }
      for (int i = 0; i < 30; ++i)
        expect(seen[static_cast<std::size_t>(i)].to_vector<float>() ==
                   std::vector<float>(100, static_cast<float>(i)),
               "allocation {}", i);
    });
  }
}

// What each rank's thread threw, where they all should fail.
std::vector<std::string> messages(int size, const GpuEngine& engine, double timeout,
                                  const std::function<void(World&)>& body) {
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  try {
    run_threads(size, options_of(engine, timeout), [&](World& world) {
      try {
        body(world);
      } catch (const CommError& error) {
        texts[static_cast<std::size_t>(world.rank())] = error.what();
        throw;
      }
    });
  } catch (const CommError&) {
  }
  return texts;
}

TEST_CASE("GPU communicators: ranks that call different things are told so") {
  for (const GpuEngine& engine : gpu_engines) {
    CAPTURE(engine.comm);
    if (!enough_gpus(2, engine)) continue;
    const auto texts = messages(2, engine, 20, [&](World& world) {
      const Device device = device_of(world, engine);
      exercise<float>(world.communicator(), 10, device);
      const Tensor data = Tensor::zeros({world.rank() == 0 ? 10 : 20}, DType::f32, device);
      world.communicator().all_reduce(data, world.rank() == 0 ? "left" : "right").finish();
    });
    for (const std::string& text : texts) {
      CAPTURE(text);
      CHECK(contains(text, "'left' of 10 f32 (device)"));
      CHECK(contains(text, "'right' of 20 f32 (device)"));
    }
  }
}

TEST_CASE("GPU communicators: a rank that never comes is named, and streams are released") {
  for (const GpuEngine& engine : gpu_engines) {
    CAPTURE(engine.comm);
    if (!enough_gpus(3, engine)) continue;
    const auto texts = messages(3, engine, 0.5, [&](World& world) {
      const Device device = device_of(world, engine);
      exercise<float>(world.communicator(), 10, device);
      if (world.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(2));
      const Tensor data = Tensor::zeros({10}, DType::f32, device);
      world.communicator().all_reduce(data, "missed").finish();
    });
    CAPTURE(texts[0]);
    CAPTURE(texts[2]);
    CHECK(contains(texts[0] + texts[2], "timed out after 0.5 s, waiting for rank 1"));
    CHECK(contains(texts[0], "'missed'"));
    CHECK(contains(texts[2], "'missed'"));
  }
}

TEST_CASE("GPU communicators: what cannot be is refused in one line") {
  if (!enough_gpus(2, gpu_engines[2])) return;
  const auto on_one_gpu = [](World& world) {
    world.communicator().all_reduce(Tensor::zeros({4}, DType::f32, {*gpu::kind(), 0}), "x").wait();
  };
  CHECK_THROWS_WITH_AS(run_threads(2, {.comm = "nccl"}, on_one_gpu),
                       doctest::Contains("[nccl] ranks 0 and 1 share a GPU"), UsageError);
  run_threads(2, {}, on_one_gpu);  // auto: ipc
  CHECK_THROWS_AS(World::join({.comm = "nccl", .transport = "ipc"}), UsageError);
}

}  // namespace
}  // namespace lockstep
