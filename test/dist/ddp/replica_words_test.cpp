// ReplicaCheck by itself: what it compares, in which words it tells a difference, whom it blames,
// and what it leaves for the end.

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/dist/ddp/guards/replica_check.h"
#include "lockstep/dist/rendezvous/events/left_replicas.h"
#include "lockstep/dist/rendezvous/events/rank_event.h"
#include "lockstep/kernels/fingerprint.h"
#include "lockstep/lockstep.h"
#include "support/forked_ranks.h"
#include "support/worlds.h"

using namespace lockstep;
using dist::ReplicaCheck, dist::index;

namespace {

/// Keeps one tensor of each parameter, and has options.
struct Kept final : Stepper {
  explicit Kept(double value = 0, std::string options = "") : value(value), options(options) {}
  std::vector<StateTensor> state_of(const Parameter&) const override {
    return {{"mean", Tensor::full({2}, value)}};
  }
  std::string options_text() const override { return options; }
  double value;
  std::string options;
};

std::vector<Parameter> several(std::size_t count) {
  std::vector<Parameter> all;
  for (std::size_t i = 0; i < count; ++i)
    all.emplace_back(Tensor::full({3}, static_cast<double>(i), DType::f64), fmt::format("p{}", i));
  return all;
}

struct Words {
  std::string text, culprit;
};

/// What `find(check)` says on every rank, after `change(rank, parameters, check)`.
template <class Change, class Find>
Words words_of(int size, std::size_t parameters, Change change, Find find) {
  std::vector<Words> said(index(size));
  run_threads(size, {}, [&](World& world) {
    const auto all = several(parameters);
    ReplicaCheck check(all, world.communicator(), true, false);
    change(world.rank(), all, check);
    Words& mine = said[index(world.rank())];
    mine.text = find(check);
    mine.culprit = text_of(check.blame());
    check.error_told();
  });
  for (const Words& words : said) {
    CHECK(words.text == said[0].text);
    CHECK(words.culprit == said[0].culprit);
  }
  return said[0];
}

std::string difference(ReplicaCheck& check) { return check.find_difference(); }

/// What it tells the other ranks.
std::uint64_t sum_of(ReplicaCheck& check) {
  StepMetadata metadata;
  check.write(metadata);
  return metadata.replica_fingerprint;
}

/// What the last comparison says, after `body(world, parameters, check)`.
template <class F>
std::string at_the_end(int size, F body) {
  std::string text;
  try {
    run_threads(size, {}, [&](World& world) {
      const auto all = several(2);
      ReplicaCheck check(all, world.communicator(), true, false);
      body(world, all, check);
    });
  } catch (const StateError& error) {
    text = error.what();
  }
  return text;
}

}  // namespace

TEST_CASE("replica check: of many differences four are named, and the others counted") {
  const std::vector<std::string> tails{"",
                                       "; so do 'p1'",
                                       "; so do 'p1', 'p2'",
                                       "; so do 'p1', 'p2', 'p3'",
                                       "; so do 'p1', 'p2', 'p3' and 1 more",
                                       "; so do 'p1', 'p2', 'p3' and 2 more",
                                       "; so do 'p1', 'p2', 'p3' and 3 more"};
  for (std::size_t count = 1; count <= tails.size(); ++count)
    for (const int odd : {0, 2}) {
      const Words words = words_of(
          3, tails.size(),
          [&](int rank, const auto& all, const auto&) {
            for (std::size_t i = 0; i < count && rank == odd; ++i)
              all[i].value().template data<double>()[1] = 7.5;
          },
          difference);
      CAPTURE(words.text);
      CHECK(words.culprit == fmt::format("rank {} is in the minority", odd));
      CHECK(words.text.starts_with("'p0' at (1): "));
      CHECK(words.text.ends_with(words.culprit + tails[count - 1]));
    }
}

TEST_CASE("replica check: what is printed alike is told apart by its bits") {
  const auto nan = [](std::uint64_t bits) {
    return std::bit_cast<double>(0x7ff8000000000000 | bits);
  };
  const Words words = words_of(
      3, 2,
      [&](int rank, const auto& all, const auto&) {
        all[1].value().template data<double>()[2] = nan(rank == 1 ? 5 : 4);
      },
      difference);
  for (const char* part : {"'p1' at (2): ", "nan (0x7ff8000000000005) on rank 1",
                           "nan (0x7ff8000000000004) on ranks 0, 2"})
    CHECK(test::contains(words.text, part));
}

TEST_CASE("replica check: an optimizer that steps often is one, however often it is noted") {
  const Words words = words_of(
      2, 1,
      [&](int rank, const auto&, ReplicaCheck& check) {
        static thread_local std::shared_ptr<Stepper> kept;
        kept = std::make_shared<Kept>(rank);
        for (int step = 0; step < 3; ++step) check.note(kept);
      },
      difference);
  CHECK(words.text.starts_with("mean of 'p0' at (0): "));
  CHECK_FALSE(test::contains(words.text, "so do"));
}

TEST_CASE("replica check: nobody is to blame any more once the difference is gone") {
  const Words words = words_of(
      3, 2,
      [&](int rank, const auto& all, ReplicaCheck& check) {
        if (rank == 1) all[0].value().fill(9);
        test::expect(check.find_difference() != "", "there is a difference");
        test::expect(check.blame() == Blame{{1}, Fault::in_minority}, "{}", text_of(check.blame()));
        all[0].value().fill(0);
      },
      difference);
  CHECK(words.text == "");
  CHECK(words.culprit == "");
}

TEST_CASE("replica check: options that differ, whichever optimizer has stepped first") {
  for (const int other_order : {-1, 0, 1, 2})
    for (const int odd : {0, 2}) {
      const Words words = words_of(
          3, 1,
          [&](int rank, const auto&, ReplicaCheck& check) {
            static thread_local std::vector<std::shared_ptr<Stepper>> kept;
            kept = {std::make_shared<Kept>(0, "SGD's lr 0.1\nSGD's momentum 0\n"),
                    std::make_shared<Kept>(0, rank == odd ? "Adam's lr 7\n" : "Adam's lr 5\n")};
            if (rank == other_order) std::swap(kept[0], kept[1]);
            for (const auto& stepper : kept) check.note(stepper);
          },
          [](ReplicaCheck& check) { return check.find_options_difference(); });
      CAPTURE(words.text);
      CHECK(test::contains(words.text, fmt::format("Adam's lr 7 on rank {}", odd)));
      CHECK(test::contains(words.text,
                           odd == 0 ? "Adam's lr 5 on ranks 1, 2" : "Adam's lr 5 on ranks 0, 1"));
      CHECK_FALSE(test::contains(words.text, "SGD"));
      CHECK(words.culprit == fmt::format("rank {} is in the minority", odd));
    }
}

TEST_CASE(
    "replica check: a parameter that nobody steps on is read in each step, beside local ones") {
  for (const std::size_t shared : {0, 2, 4})
    for (int before = 0; before < 6; ++before) {
      std::vector<std::uint64_t> sums(2);
      run_threads(2, {}, [&](World& world) {
        const auto all = several(5);
        for (std::size_t i = 0; i < all.size(); ++i)
          if (i != shared) all[i].keep_local();
        ReplicaCheck check(all, world.communicator(), true, false);
        for (int step = 0; step < before; ++step) check.begins(false);
        if (world.rank() == 1) all[shared].value().fill(4.25);
        check.begins(false);
        sums[index(world.rank())] = sum_of(check);
        check.error_told();
      });
      CHECK(sums[0] != sums[1]);
    }
}

TEST_CASE("replica check: of a difference that was told nothing is said once more at the end") {
  for (const int odd : {0, 1, 2}) {
    CHECK(at_the_end(3, [&](World& world, const auto& all, ReplicaCheck& check) {
            if (world.rank() == odd) all[1].value().fill(3);
            test::expect(check.find_difference() != "", "it was not found");
          }) == "");
    CHECK(at_the_end(3, [&](World& world, const auto&, ReplicaCheck& check) {
            static thread_local std::shared_ptr<Stepper> kept;  // it outlives the check
            kept = std::make_shared<Kept>(1);
            if (world.rank() == odd) check.note(kept);
            test::expect(check.find_difference() != "", "it was not found");
          }) == "");
  }
}

TEST_CASE("replica check: what is told at the end: values, states, steps, and who does not end") {
  const auto step = [](const Parameter& p, ReplicaCheck& check) {
    kernels::add_fingerprint({&p.value(), 1}, check.step_on(0));
  };
  CHECK(at_the_end(3, [&](World&, const auto& all, ReplicaCheck& check) { step(all[0], check); }) ==
        "");
  for (const int odd : {0, 1, 2}) {
    const std::string told = odd == 0   ? "rank 0 ended with another replica than ranks 1, 2"
                             : odd == 1 ? "rank 1 ended with another replica than ranks 0, 2"
                                        : "rank 2 ended with another replica than ranks 0, 1";
    CHECK(test::contains(at_the_end(3,
                                    [&](World& world, const auto& all, ReplicaCheck&) {
                                      if (world.rank() == odd) all[1].value().fill(3);
                                    }),
                         told));
    // It has stepped otherwise, and then taken over the right values.
    CHECK(test::contains(at_the_end(3,
                                    [&](World& world, const auto& all, ReplicaCheck& check) {
                                      if (world.rank() == odd) all[0].value().fill(3);
                                      step(all[0], check);
                                      all[0].value().fill(5);
                                    }),
                         told));
    std::vector<std::unique_ptr<ReplicaCheck>> for_ever(3);
    const std::string text = at_the_end(3, [&](World& world, const auto& all, ReplicaCheck&) {
      if (world.rank() == odd)
        for_ever[1] = std::make_unique<ReplicaCheck>(all, world.communicator(), true, false);
      else
        ReplicaCheck(all, world.communicator(), true, false);
    });
    CHECK(
        test::contains(text, fmt::format("rank {} did not end the DistributedDataParallel", odd)));
  }
}

TEST_CASE("replica check: a child that was forked leaves nothing in the name of its parent") {
  const test::TemporaryFolder folder;
  const dist::Pipe launcher = dist::make_pipe();
  test::check_all_well(test::run_processes(2, [&](int rank) {
    ::setenv("LOCKSTEP_ERROR_FD", std::to_string(launcher.write_end.get()).c_str(), 1);
    test::set_rank_environment(rank, 2, "unix:" + folder / "rendezvous");
    World world = World::join({.transport = "shm", .timeout = dist::Seconds(30)});
    auto check = std::make_unique<ReplicaCheck>(several(2), world.communicator(), true, false);
    if (const pid_t child = ::fork(); child == 0) {
      check.reset();
      ::_exit(0);
    } else {
      ::waitpid(child, nullptr, 0);
    }
  }));
  char text[4096];
  const ssize_t got = ::read(launcher.read_end.get(), text, sizeof text);
  std::istringstream lines(std::string(text, static_cast<std::size_t>(std::max<ssize_t>(got, 0))));
  int left = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto event = dist::RankEvent::read(line);
    left += event && event->kind == dist::RankEvent::Kind::replica;
  }
  CHECK(left == 4);  // of each rank: it has begun, it has ended
}

TEST_CASE(
    "replica check: averaged counts of steps are rank 0's, whatever the others have counted") {
  for (const int size : {2, 3})
    run_threads(size, {}, [](World& world) {
      const Parameter w(Tensor::full({2}, 1, DType::f64), "w");
      dist::DistributedDataParallel ddp({w}, {}, world);
      optim::Adam optimizer({w}, {.lr = 0.01});
      for (int step = 0; step < 2 + 3 * world.rank(); ++step) {
        optimizer.zero_grad();
        Tape tape;
        tape.backward(sum(w * (1.0 + world.rank())), {}, {.sync = false});
        optimizer.step(optim::local);
      }
      optimizer.zero_grad();
      ddp.average_parameters();
      for (const StateTensor& state : optimizer.state_of(w))
        if (state.name == "step")
          test::expect(state.value.item() == 2, "{} steps", state.value.item());
    });
}

TEST_CASE(
    "replica check: a step on what is each rank's own counts nowhere, one on a part as none") {
  for (const bool own : {false, true})
    for (const std::size_t target : {0, 1}) {
      std::vector<std::uint64_t> sums(2);
      run_threads(2, {}, [&](World& world) {
        const auto all = several(2);
        ReplicaCheck check(all, world.communicator(), true, false);
        if (own) all[target].keep_local();  // after the check was made
        for (int step = 0; step < 3; ++step) {
          for (std::size_t i = 0; i < all.size(); ++i) {
            if (i == target) all[i].value().fill(world.rank());
            kernels::add_fingerprint({&all[i].value(), 1}, check.step_on(i, !own));
          }
          check.begins(false);
        }
        sums[index(world.rank())] = sum_of(check);
        check.error_told();
      });
      // Parts are stepped on by one rank alone: the values are read instead, in turn.
      CHECK((sums[0] == sums[1]) == own);
    }
}
