// What dist::Trace writes: the plan's own steps, slices that never overlap, each gradient once.

#include "lockstep/dist/observe/trace.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "lockstep/core/trace/recorder.h"
#include "lockstep/dist/collectives/plan/plan.h"
#include "lockstep/dist/observe/clocks.h"
#include "lockstep/lockstep.h"
#include "lockstep/tools/trace/steps.h"
#include "support/temporary_folder.h"
#include "support/worlds.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;
using traces::RankTrace;

namespace {

/// Six parameters in three buckets, a layer that communicates, a block that is computed twice.
struct Model {
  explicit Model(const World& world)
      : model{nn::Linear(20, 30), nn::SyncBatchNorm(30, world), nn::ReLU(), nn::Linear(30, 40),
              nn::Linear(40, 5)},
        optimizer(model.parameters(), {.lr = 0.01, .momentum = 0.9}),
        ddp(model.parameters(), model.buffers(), world,
            {.bucket_cap_mb = 0.005, .first_bucket_mb = 0.001, .last_bucket_mb = 0.001}) {}

  void step(const World& world, int number) {
    Tensor x = Tensor::empty({4 + number % 3, 20});
    Generator(static_cast<std::uint64_t>(7 * number + world.rank())).normal(x, 0, 1);
    Tape tape;
    const Tensor loss = mean(checkpoint([&](const Tensor& t) { return model(t); }, x));
    tape.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }

  nn::Sequential model;
  optim::SGD optimizer;
  dist::DistributedDataParallel ddp;
};

std::vector<RankTrace> traced_training(int ranks, const std::string& comm, int steps,
                                       const dist::TraceOptions& options = {}) {
  const TemporaryFolder folder;
  run_threads(ranks, {.comm = comm}, [&](World& world) {
    manual_seed(0);
    Model model(world);
    const dist::Trace trace(world, folder / "traces", options);
    for (int i = 0; i < steps; ++i) model.step(world, i);
  });
  return traces::read_traces(folder / "traces");
}

// Viewers need it: on one track two slices are apart, or one contains the other and comes first.
void check_nesting(const RankTrace& trace) {
  std::vector<const traces::Event*> open;
  int track = 0;
  double before = 0;
  for (const traces::Event& event : trace.events) {
    if (event.track != track) open.clear();
    if (event.track == track) CHECK(event.begin >= before);
    track = event.track;
    before = event.begin;
    CHECK(event.end >= event.begin);
    constexpr double rounding = 0.0011;  // us: files have three decimals
    while (!open.empty() && open.back()->end <= event.begin + rounding) open.pop_back();
    if (!open.empty()) {
      INFO(open.back()->category, " '", open.back()->name, "' and ", event.category, " '",
           event.name, "'");
      CHECK(event.end <= open.back()->end + rounding);
    }
    if (event.duration() > rounding) open.push_back(&event);
  }
}

dist::Operation operation_named(const std::string& name) {
  for (int k = 0; k < 8; ++k)
    if (dist::name_of(static_cast<dist::Operation>(k)) == name)
      return static_cast<dist::Operation>(k);
  FAIL("no operation is named ", name);
  return {};
}

dist::Algorithm algorithm_of(const std::string& name) {
  for (int k = 0; k < 12; ++k)
    if (dist::name_of(static_cast<dist::Algorithm>(k)) == name)
      return static_cast<dist::Algorithm>(k);
  FAIL("no algorithm is named ", name);
  return {};
}

/// Every collective has the steps of its plan, in order. Returns how many collectives there are.
int check_plans(const RankTrace& trace, int world) {
  int collectives = 0;
  std::map<int, std::vector<const traces::Event*>> tracks;
  for (const traces::Event& event : trace.events)
    if (event.track > 1) tracks[event.track].push_back(&event);
  for (const auto& [track, events] : tracks) {
    for (std::size_t i = 0; i < events.size();) {
      const traces::Event& call = *events[i++];
      REQUIRE(call.category == "collective");
      ++collectives;
      CAPTURE(call.arguments.dump());
      dist::Plan plan;
      dist::make_plan({.operation = operation_named(call.arguments.at("operation")),
                       .algorithm = algorithm_of(call.arguments.at("algorithm")),
                       .rank = trace.rank,
                       .world = world,
                       .count = call.arguments.at("elements"),
                       .root = call.arguments.at("root")},
                      plan);
      for (std::size_t k = 0; k < plan.size(); ++k, ++i) {
        REQUIRE(i < events.size());
        const traces::Event& step = *events[i];
        REQUIRE(step.category == "step");
        const nlohmann::json& a = step.arguments;
        CHECK(a.at("number") == k);
        CHECK(a.at("to") == plan[k].to);
        CHECK(a.at("from") == plan[k].from);
        CHECK(a.at("send") == nlohmann::json{plan[k].send.begin, plan[k].send.end});
        CHECK(a.at("receive") == nlohmann::json{plan[k].receive.begin, plan[k].receive.end});
        CHECK(step.begin >= call.begin - 0.0011);
        CHECK(step.end <= call.end + 0.0011);
      }
    }
  }
  return collectives;
}

}  // namespace

TEST_CASE("trace: every collective has exactly the steps of its plan") {
  for (const int ranks : {2, 3, 4})
    for (const char* comm : {"ring", "direct", "one-shot", "halving"}) {
      CAPTURE(ranks);
      CAPTURE(comm);
      const TemporaryFolder folder;
      run_threads(ranks, {.comm = comm}, [&](World& world) {
        const dist::Trace trace(world, folder / "");
        for (const std::int64_t count : {0, 1, 5, 1000}) {
          const Tensor data = Tensor::full({count}, world.rank() + 1.0);
          world.communicator().all_reduce(data, "data").wait();
          const Tensor shared = world.communicator().allocate(count, DType::f32);
          world.communicator().all_reduce(shared, "shared").wait();
          world.communicator().broadcast(data, ranks - 1, "data").wait();
        }
        world.communicator().barrier("end").wait();
      });
      for (const RankTrace& trace : traces::read_traces(folder / "")) {
        CHECK(check_plans(trace, ranks) >= 13);
        check_nesting(trace);
      }
    }
}

TEST_CASE("trace: a training step, each of its events once") {
  constexpr int steps = 6;
  for (const auto& [ranks, comm] : {std::pair(1, "auto"), std::pair(2, "auto"),
                                    std::pair(3, "ring"), std::pair(4, "halving")}) {
    CAPTURE(ranks);
    const std::vector<RankTrace> all = traced_training(ranks, comm, steps);
    REQUIRE(all.size() == static_cast<std::size_t>(ranks));
    for (const RankTrace& trace : all) {
      check_nesting(trace);
      (void)check_plans(trace, ranks);
      std::map<std::string, int> events;
      for (const traces::Event& event : trace.events) ++events[event.category + " " + event.name];
      CHECK(events["optimizer step"] == steps);
      CHECK(events["verdict commit"] == steps);
      CHECK(events["ready 0.weight"] == steps);
      CHECK(events["ready 4.bias"] == steps);
      CHECK(events["launched bucket 0"] == steps);
      CHECK(events["forward matmul"] + events["forward linear"] == 6 * steps);  // each twice
      CHECK(events["backward linear"] + events["backward matmul"] == 3 * steps);
    }
    for (const traces::Step& step : traces::steps_of(all)) {
      for (const traces::Step::Rank& rank : step.ranks) {
        // What is told when an operation has ended is not the operation's time.
        CHECK(rank.backward_begins + rank.buckets.back().ready >= rank.backward_ends);
        REQUIRE(rank.buckets.size() == 3);
        double before = -1e9;
        for (const traces::BucketTimes& bucket : rank.buckets) {
          CHECK(bucket.launched >= before);  // in index order
          before = bucket.launched;
          CHECK(bucket.ready <= bucket.launched);
          CHECK(bucket.launched <= bucket.begun);
          CHECK(bucket.begun <= bucket.arrived);
        }
      }
    }
  }
}

TEST_CASE("trace: an exposed second is one in the statistics, in the trace, and by a closed form") {
  // Rank 1 stands still for 10 s before its part of the second synchronization: rank 0 waits.
  const TemporaryFolder folder;
  constexpr double pause = 10;
  std::vector<double> statistics(2), by_trace(2);
  test::run_simulated({.seed = 1, .size = 2, .max_delay = dist::Seconds(1e-6)},
                      [&](dist::HostCommunicator& communicator) {
                        const Parameter w(Tensor::full({8}, 1.0), "w");
                        dist::Reducer reducer({w}, communicator);
                        const dist::Trace trace(communicator, folder / "");
                        for (int step = 0; step < 3; ++step) {
                          Tape tape;
                          const Tensor loss = sum(Tensor(w) * 2.0);
                          if (step == 1 && communicator.rank() == 1)
                            dist::compute(communicator.transport(), dist::Seconds(pause));
                          const double before = reducer.statistics().exposed_seconds;
                          tape.backward(loss);
                          if (step == 1)
                            statistics[dist::index(communicator.rank())] =
                                reducer.statistics().exposed_seconds - before;
                        }
                      });
  const auto all = traces::read_traces(folder / "");
  const auto of_all = traces::figures_of(all, traces::steps_of(all));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const traces::RankFigures& figures = of_all[rank];
    by_trace[rank] = figures.exposed / 1e6;
    if (rank == 0) CHECK(figures.waits.at(1) / 1e6 == doctest::Approx(pause).epsilon(0.02));
  }
  CHECK(statistics[0] == doctest::Approx(pause).epsilon(0.02));
  CHECK(by_trace[0] == doctest::Approx(statistics[0]).epsilon(0.02));
  CHECK(statistics[1] < 0.1);
}

TEST_CASE("trace: the verdicts of synchronizations are commit, skip and stop") {
  for (const auto& [policy, verdict] :
       {std::pair(dist::NonFinite::skip, "skip"), std::pair(dist::NonFinite::stop, "stop")})
    run_threads(2, {}, [&](World& world) {
      const Parameter w(Tensor::full({3}, 1.0), "w");
      dist::Reducer reducer({w}, world.communicator(), {.nonfinite = policy});
      trace::Recorder recorder([] { return std::int64_t{0}; }, 1000);
      trace::here.recorder = &recorder;
      for (const double factor : {1.0, world.rank() == 1 ? 1e300 * 1e300 : 1.0}) {
        Tape tape;
        const Tensor loss = sum(Tensor(w) * factor);
        try {
          tape.backward(loss);
        } catch (const StateError&) {
          // The policy is to stop.
        }
        reducer.zero_grad();
      }
      trace::here.recorder = nullptr;
      std::string verdicts;
      for (const auto& chunk : recorder.events())
        for (const trace::Event& event : chunk)
          if (event.kind == trace::Kind::verdict) verdicts += std::string(event.name.data()) + " ";
      check<Error>(verdicts == fmt::format("commit {} ", verdict), "{}", verdicts);
    });
}

TEST_CASE("trace: clocks that differ are brought together, others are left alone") {
  std::mt19937_64 random(5);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int drawn = 0; drawn < 200; ++drawn) {
    const std::size_t ranks = static_cast<std::size_t>(1 + below(5));
    std::vector<std::int64_t> ahead(ranks, 0);
    for (std::size_t r = 1; r < ranks; ++r)
      if (drawn % 2 == 0) ahead[r] = below(2'000'000'000) - 1'000'000'000;
    std::vector<std::vector<std::int64_t>> came, left;
    std::int64_t now = 1'000'000;
    for (int round = 0; round < 4; ++round) {
      came.emplace_back();
      left.emplace_back();
      std::int64_t last = 0;
      for (std::size_t r = 0; r < ranks; ++r) {
        came.back().push_back(now + below(5000) + ahead[r]);
        last = std::max(last, came.back()[r] - ahead[r]);
      }
      for (std::size_t r = 0; r < ranks; ++r)
        left.back().push_back(last + 1 + below(3000) + ahead[r]);
      now = last + 10'000;
    }
    const auto offsets = dist::clock_offsets(came, left);
    for (std::size_t r = 0; r < ranks; ++r) {
      CHECK(std::abs(offsets[r].offset - ahead[r]) <= offsets[r].uncertainty);
      CHECK(offsets[r].uncertainty <= 16'000);
      if (ahead[r] == 0) CHECK(offsets[r].offset == 0);
    }
  }
}

TEST_CASE("trace: one that ends in the middle of a collective leaves nothing to the next") {
  const TemporaryFolder folder;
  std::atomic<bool> stepped{false};
  run_threads(3, {.comm = "ring"}, [&](World& world) {
    const Tensor data = Tensor::full({1000}, 1);
    {
      const dist::Trace trace(world, folder / "first");
      while (world.rank() == 1 && !stepped) std::this_thread::yield();
      dist::Work work = world.communicator().all_reduce(data, "data");
      while (world.rank() == 0 && !stepped) {  // rank 2 has sent its part, rank 1 has not come
        (void)work.progress();
        for (const auto& chunk : trace::here.recorder->events())
          for (const trace::Event& event : chunk)
            if (event.kind == trace::Kind::step) stepped = true;
      }
    }
    world.communicator().barrier("ended").wait();
    const dist::Trace trace(world, folder / "second");
    world.communicator().all_reduce(data, "data").wait();
  });
  for (const RankTrace& trace : traces::read_traces(folder / "second")) {
    CHECK(check_plans(trace, 3) == 1);
    check_nesting(trace);
  }
}

TEST_CASE("trace: the first events are kept, the others are counted") {
  const auto all = traced_training(2, "auto", 10, {.most_events = 100});
  for (const RankTrace& trace : all) {
    CHECK(trace.events.size() == 100);
    CHECK(trace.dropped > 100);
  }
}

TEST_CASE("trace: it ends, once, and also while an exception is thrown") {
  const TemporaryFolder folder;
  const World world = World::join();
  {
    dist::Trace trace(world, folder / "one");
    CHECK_THROWS_WITH_AS(dist::Trace(world, folder / "two"),
                         "[trace] this thread has a Trace already", StateError);
    CHECK(trace::here.recorder != nullptr);
    trace.write();
    CHECK(trace::here.recorder == nullptr);
    CHECK_THROWS_AS(trace.write(), StateError);
  }
  try {
    const dist::Trace trace(world, folder / "three");
    (void)relu(Tensor::zeros({3}));
    throw Error("an error");
  } catch (const Error&) {
    CHECK(trace::here.recorder == nullptr);
  }
  const auto read = traces::read_traces(folder / "three");
  REQUIRE(read.size() == 1);
  CHECK(std::ranges::count(read[0].events, "relu", &traces::Event::name) == 1);
}

TEST_CASE("trace: where a folder cannot be written, every rank says so") {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "here";
  const auto messages = test::messages_on_threads(
      3, [&](World& world) { const dist::Trace trace(world, folder / "file"); });
  test::check_all_say(messages, {"cannot make the folder"});
  CHECK(trace::here.recorder == nullptr);
}
