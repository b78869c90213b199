// DistributedDataParallel with ranks as threads.

#include "lockstep/dist/ddp/ddp.h"

#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <mutex>

#include "lockstep/autograd/ops.h"
#include "lockstep/nn/optim/optimizer.h"
#include "support/forked_ranks.h"
#include "support/worlds.h"

using namespace lockstep;

namespace {

Parameter parameter(const std::string& name, const Shape& shape, double value) {
  return Parameter(Tensor::full(shape, value), name);
}

}  // namespace

TEST_CASE("rank 0's parameters and buffers start every replica") {
  for (const int size : {1, 2, 3, 4, 7})
    run_threads(size, {}, [&](World& world) {
      const Parameter w = parameter("w", {3}, 10 + world.rank());
      const Buffer buffer{"b", Tensor::full({2}, 20 + world.rank())};
      const dist::DistributedDataParallel ddp({w}, {buffer}, world);
      check<Error>(w.value().to_vector<float>() == std::vector<float>{10, 10, 10}, "parameters");
      check<Error>(buffer.value.to_vector<float>() == std::vector<float>{20, 20}, "buffers");
      check<Error>(parameter_digest({w}) ==
                       dist::gather_text(world.communicator(), parameter_digest({w}))[0],
                   "digests");
    });
}

TEST_CASE("a parameter is under one DistributedDataParallel at a time, and the error says so") {
  run_threads(2, {}, [](World& world) {
    const Parameter w = parameter("w", {3}, 1), v = parameter("v", {3}, 1);
    const auto refused = [&](const std::vector<Parameter>& parameters) -> std::string {
      try {
        const dist::DistributedDataParallel ddp(parameters, {}, world);
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    {
      const dist::DistributedDataParallel first({w}, {}, world);
      check<Error>(refused({v, w}).starts_with(
                       "[DistributedDataParallel] parameter 'w' is under another one already"),
                   "another one");
    }
    check<Error>(refused({v, v}) == "[DistributedDataParallel] 'v' is given twice", "twice");
    v.set_requires_grad(false);
    check<Error>(refused({v, v}) == "[DistributedDataParallel] 'v' is given twice",
                 "twice, and frozen");
    check<Error>(refused({v, w}).empty(), "the first one has ended");
  });
}

TEST_CASE("models that differ: processes say so too, though the first to know ends at once") {
  for (const char* transport : {"shm", "tcp"})
    for (int round = 0; round < 5; ++round) {
      const test::TemporaryFolder folder;
      const auto outcomes = test::run_processes(3, [&](int rank) {
        test::set_rank_environment(rank, 3, "unix:" + folder / "store");
        const World world = World::join({.transport = transport});
        const dist::DistributedDataParallel ddp({parameter("w", {10 + rank}, 0)}, {}, world);
      });
      for (const test::Outcome& outcome : outcomes) {
        INFO(transport, ": ", outcome.message);
        CHECK(outcome.message.find("'w' (10,) f32 on rank 0, parameter 'w' (11,)") !=
              std::string::npos);
      }
    }
}

TEST_CASE("a verdict to stop reaches every process, though the first to know ends at once") {
  for (const char* transport : {"shm", "tcp"})
    for (int round = 0; round < 5; ++round) {
      const test::TemporaryFolder folder;
      const auto outcomes = test::run_processes(3, [&](int rank) {
        test::set_rank_environment(rank, 3, "unix:" + folder / "store");
        const World world = World::join({.transport = transport});
        const Parameter w = parameter("w", {3}, 1);
        const dist::DistributedDataParallel ddp({w}, {}, world,
                                                {.nonfinite = dist::NonFinite::stop});
        const Tensor x = Tensor::full({3}, 1);
        if (rank == 1) x.data<float>()[2] = std::numeric_limits<float>::infinity();
        Tape tape;
        tape.backward(sum(w * x));
      });
      for (const test::Outcome& outcome : outcomes) {
        INFO(transport, ": ", outcome.message);
        CHECK(
            outcome.message.find("element 2 of the gradient of 'w' is infinite or NaN on rank 1") !=
            std::string::npos);
      }
    }
}

TEST_CASE("ranks that step differently are told by the next backward, on every rank") {
  for (const bool adam : {false, true}) {
    const auto texts = test::messages_on_threads(3, [&](World& world) {
      const Parameter w = parameter("w", {3}, 1);
      const dist::DistributedDataParallel ddp({w}, {}, world);
      const double lr = world.rank() == 2 ? 0.1 : 0.2;
      std::unique_ptr<optim::Optimizer> optimizer;
      if (adam)
        optimizer = std::make_unique<optim::Adam>(std::vector{w}, optim::AdamOptions{.lr = lr});
      else
        optimizer = std::make_unique<optim::SGD>(std::vector{w}, optim::SGD::Options{.lr = lr});
      for (int step = 0; step < 2; ++step) {
        Tape tape;
        tape.backward(sum(w));
        optimizer->step();
        optimizer->zero_grad();
      }
    });
    for (const std::string& text : texts) {
      INFO(text);
      CHECK(text.find("ranks 0 and 2 did not take the same optimizer steps") != std::string::npos);
      const std::string name = adam ? "Adam" : "SGD";
      CHECK(text.ends_with(fmt::format(
          "{0}'s lr 0.1 on rank 2, {0}'s lr 0.2 on ranks 0, 1: rank 2 is in the minority", name)));
    }
  }
}

TEST_CASE("a bucket cap that makes no sense is refused with its value") {
  CHECK_THROWS_WITH_AS(run_threads(1, {},
                                   [](World& world) {
                                     const dist::DistributedDataParallel ddp({}, {}, world,
                                                                             {.bucket_cap_mb = -1});
                                   }),
                       doctest::Contains("-1"), UsageError);
}

TEST_CASE("a frozen parameter takes no part, and a model may have none at all") {
  run_threads(2, {}, [](World& world) {
    const Parameter frozen = parameter("frozen", {2}, world.rank()),
                    free = parameter("free", {2}, 1);
    frozen.set_requires_grad(false);
    const dist::DistributedDataParallel ddp({frozen, free}, {}, world);
    const dist::DistributedDataParallel none({}, {}, world);
    Tape tape;
    tape.backward(sum(frozen + free));
    check<Error>(free.gradient().to_vector<float>() == std::vector<float>{1, 1}, "free");
    check<Error>(!frozen.gradient().defined(), "frozen");
    check<Error>(frozen.value().to_vector<float>() == std::vector<float>{0, 0}, "broadcast");
  });
}

TEST_CASE("models that were trained apart are not averaged where the ranks must not matter") {
  for (const auto level : {dist::Deterministic::layout, dist::Deterministic::world})
    run_threads(2, {}, [&](World& world) {
      dist::DistributedDataParallel ddp({parameter("w", {3}, 1)}, {}, world,
                                        {.deterministic = level});
      if (level == dist::Deterministic::layout) return ddp.average_parameters();
      CHECK_THROWS_WITH_AS(ddp.average_parameters(),
                           doctest::Contains("[average_parameters] bits of level 'world'"),
                           StateError);
    });
}
