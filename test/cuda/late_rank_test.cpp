/// A rank that lives and does no more: the others are told within their timeout, whatever their
/// hosts do then. On a GPU the driver would wait with them for ever.

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "cuda/engines.h"
#include "lockstep/core/gpu/graph.h"
#include "support/expect.h"
#include "support/forked_ranks.h"

namespace lockstep::test::late_rank {
namespace {

/// Two processes of a real GPU take turns on it, for milliseconds each.
double timeout() { return gpu::kind() == Device::Kind::cuda ? 2 : 0.5; }

struct Case {
  const char* name;
  bool recorded;
  /// What rank 0 does while rank 1 does nothing.
  std::function<void(const Tensor& sum, const std::function<void()>& step)> goes_on;
};

const Case cases[] = {
    {"it reads a result of a step", false, [](const Tensor& sum, const auto&) { sum.item(); }},
    {"it waits for its stream", false,
     [](const Tensor& sum, const auto&) { Stream::current(sum.device()).synchronize(); }},
    {"it reads a result of a replay", true, [](const Tensor& sum, const auto&) { sum.item(); }},
    {"it replays, and reads nothing", true,
     [](const Tensor&, const auto& step) {
       for (int i = 0; i < 100; ++i) step();
     }},
    {"it copies batches, and replays", true,
     [](const Tensor& sum, const auto& step) {
       for (int i = 0; i < 100; ++i) {
         sum.copy_from(Tensor::full({}, i));
         step();
       }
     }},
};

/// Three steps of both ranks, and a fourth of rank 0 alone.
void train(World& world, const Case& one, const GpuEngine& engine, const auto& stay) {
  const Device device{*gpu::kind(), engine.transport == "ipc" ? 0 : world.rank()};
  const Tensor sum = Tensor::full({}, world.rank() + 1, DType::f32, device);
  const auto add = [&] { world.communicator().all_reduce(sum, "sum").wait(); };
  StepGraph graph(add, device);
  const std::function<void()> step = [&] { one.recorded ? (void)graph() : add(); };
  for (int i = 0; i < 3; ++i) step();
  Stream::current(device).synchronize();
  if (world.rank() == 1) return stay();
  step();
  one.goes_on(sum, step);
}

bool told(const std::string& message) {
  return contains(message, fmt::format("timed out after {} s, waiting for rank 1", timeout())) ||
         contains(message, fmt::format("a replay has not ended after {} s", timeout()));
}

TEST_CASE("GPU ranks that are late: a rank that does nothing more is not waited for for ever") {
  for (const GpuEngine& engine : gpu_engines)
    for (const Case& one : cases) {
      if (!enough_gpus(2, engine)) continue;
      CAPTURE(engine.comm);
      CAPTURE(one.name);
      const TemporaryFolder folder;
      const auto outcomes = run_processes(
          2,
          [&](int rank) {
            set_rank_environment(rank, 2, "unix:" + folder / "store");
            // To begin to use a GPU takes longer than the timeout, which holds from here on.
            (void)Tensor::zeros({}, DType::f32, {*gpu::kind(), 0});
            World world = World::join(options_of(engine, timeout()));
            train(world, one, engine, [] { std::this_thread::sleep_for(std::chrono::seconds(9)); });
          },
          30);
      CAPTURE(outcomes[0].message);
      CHECK(outcomes[0].kind == "comm");
      CHECK(told(outcomes[0].message));
    }
}

TEST_CASE("GPU ranks that are late: the same among threads") {
  for (const GpuEngine& engine : gpu_engines)
    for (const Case& one : cases) {
      if (!enough_gpus(2, engine)) continue;
      CAPTURE(engine.comm);
      CAPTURE(one.name);
      std::string message;
      std::atomic<bool> ended = false;
      CHECK_THROWS_AS(run_threads(2, options_of(engine, timeout()),
                                  [&](World& world) {
                                    try {
                                      train(world, one, engine, [&] {
                                        while (!ended) std::this_thread::yield();
                                      });
                                    } catch (const CommError& error) {
                                      message = error.what();
                                      ended = true;
                                      throw;
                                    }
                                  }),
                      CommError);
      CAPTURE(message);
      CHECK(told(message));
    }
}

}  // namespace
}  // namespace lockstep::test::late_rank
