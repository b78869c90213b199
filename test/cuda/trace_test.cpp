// Streams as tracks of a trace: every kernel that was launched, once, and nothing at the same time
// as another on its stream.

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/dist/collectives/operation.h"
#include "lockstep/lockstep.h"
#include "lockstep/tools/trace/trace_file.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace {

using Counts = std::map<std::string, std::uint64_t>;
using traces::RankTrace;

constexpr int traced_steps = 4;

struct Traced {
  std::vector<RankTrace> ranks;
  Counts launches;  // of all ranks, while the trace was on
};

// Two layers in two buckets; each rank's device is its own, if there are enough.
Traced train(int size, bool recorded) {
  const test::TemporaryFolder folder;
  Counts before, after;
  run_threads(size, {.transport = "ipc"}, [&](World& world) {
    const Device device{*gpu::kind(), world.rank() % gpu::count()};
    manual_seed(3);
    nn::Sequential model{nn::Linear(10, 16), nn::ReLU(), nn::Linear(16, 4)};
    model.to(device);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    dist::DistributedDataParallel ddp(
        model.parameters(), {}, world,
        {.bucket_cap_mb = 0.0003, .first_bucket_mb = 0.0001, .rebuild_buckets = false});
    const Tensor x = Tensor::full({6, 10}, 0.5 + world.rank()).to(device);
    const auto step = [&] {
      Tape tape;
      tape.backward(mean(model(x)));
      optimizer.step();
      optimizer.zero_grad();
    };
    StepGraph graph(step, device);
    const auto once = [&] { recorded ? (void)graph() : step(); };
    for (int i = 0; i < 3; ++i) once();  // engines are made, and the step is recorded
    Stream::current(device).synchronize();
    world.communicator().barrier("before").wait();
    if (world.rank() == 0) before = gpu::kernel_launches();
    dist::Trace trace(world, folder / "t");
    for (int i = 0; i < traced_steps; ++i) once();
    trace.write();
    world.communicator().barrier("after").wait();
    if (world.rank() == 0) after = gpu::kernel_launches();
  });
  Traced traced{traces::read_traces(folder / "t"), {}};
  for (const auto& [name, launches] : after)
    if (launches > before[name]) traced.launches[name.substr(0, 45)] += launches - before[name];
  return traced;
}

bool is_kernel(const traces::Event& event) { return event.category == "kernel"; }

void check_streams(const RankTrace& trace) {
  std::map<int, double> ends;  // by track
  double first = 1e300, last = 0;
  for (const traces::Event& event : trace.events)
    if (!is_kernel(event)) first = std::min(first, event.begin), last = std::max(last, event.end);
  for (const traces::Event& event : trace.events) {
    if (!is_kernel(event)) continue;
    CAPTURE(event.name);
    CHECK(event.track >= 1000);
    CHECK(event.begin >= ends[event.track] - 0.002);  // files have whole nanoseconds
    CHECK(event.end >= event.begin);
    if (first < last) {                  // a replayed step has no slices of the thread
      CHECK(event.begin > first - 1e5);  // us: by the clock of the thread's slices
      CHECK(event.end < last + 1e6);
    }
    ends[event.track] = event.end;
  }
}

TEST_CASE("trace: one rank's streams have every kernel that it launched") {
  const Traced traced = train(1, false);
  check_streams(traced.ranks.at(0));
  Counts found;
  for (const traces::Event& event : traced.ranks[0].events)
    if (is_kernel(event)) ++found[event.name];
  for (const auto& [name, launches] : traced.launches) {
    CAPTURE(name);
    // Each sum launches one, within the slice of the collective.
    CHECK(found[name == "tree_reduce_kernel" ? "all_reduce" : name] == launches);
  }
  CHECK(found["all_reduce"] >= 2 * traced_steps);
  CHECK(traced.launches.size() > 3);
}

TEST_CASE("trace: a second trace of a thread, with more slices than wait to be read") {
  const test::TemporaryFolder folder;
  constexpr int many = 2500;
  run_threads(1, {}, [&](World& world) {
    const Tensor x = Tensor::empty({7}, DType::f32, {*gpu::kind(), 0});
    for (int round = 0; round < 2; ++round) {
      dist::Trace trace(world, folder / "t");
      for (int i = 0; i < many; ++i) x.fill(i);
    }
  });
  const RankTrace trace = traces::read_traces(folder / "t").at(0);
  check_streams(trace);
  CHECK(std::ranges::count_if(trace.events, is_kernel) == many);
}

TEST_CASE("trace: collectives are slices of a stream of their own") {
  for (const int size : {2, 3}) {
    const Traced traced = train(size, false);
    REQUIRE(traced.ranks.size() == static_cast<std::size_t>(size));
    for (const RankTrace& trace : traced.ranks) {
      check_streams(trace);
      std::set<int> computes, sends;
      int sums = 0, launched = 0;
      for (const traces::Event& event : trace.events) {
        launched += event.category == "launched";
        if (!is_kernel(event)) continue;
        const bool sum = event.name == dist::name_of(dist::Operation::all_reduce);
        sums += sum;
        (sum ? sends : computes).insert(event.track);
      }
      CHECK(launched >= 2 * traced_steps);
      CHECK(sums == launched);
      CHECK(sends.size() == 1);
      CHECK_FALSE(computes.contains(*sends.begin()));
    }
  }
}

TEST_CASE("trace: a replay of a recorded step is one slice") {
  for (const RankTrace& trace : train(2, true).ranks) {
    check_streams(trace);
    CHECK(std::ranges::count_if(trace.events, [](const traces::Event& event) {
            return is_kernel(event) && event.name == "recorded step";
          }) == traced_steps);
  }
}

}  // namespace
}  // namespace lockstep
