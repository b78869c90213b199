// Ranks that die, fail, hang or are slow: the others end soon, and who it was is told by name.

#include <doctest/doctest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "lockstep/dist/rendezvous/endpoint.h"
#include "lockstep/launch/report.h"
#include "support/program.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// In a simulated world: this rank computes until so much virtual time has passed.
void compute(dist::HostCommunicator& communicator, double seconds) {
  const dist::Seconds end = communicator.now() + dist::Seconds(seconds);
  for (unsigned round = 0; communicator.now() < end; ++round) communicator.transport().relax(round);
}

/// A job whose ranks are this program again, running the one test case that is skipped otherwise.
std::vector<std::string> job(int ranks, const std::string& test_case) {
  return {LOCKSTEP_BIN_DIR "/lockstep-run",
          "-n",
          std::to_string(ranks),
          std::filesystem::read_symlink("/proc/self/exe"),
          "--no-skip",
          "-tc=" + test_case};
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

/// What such a rank does: `body`, and then it ends as a program does.
void run_rank(const std::function<void(World&)>& body) {
  if (variable("RANK").empty()) return;  // --no-skip by hand: there is no job
  ::_exit(run_main([&] {
    World world = World::join({.transport = variable("TRAP_TRANSPORT")});
    body(world);
    return 0;
  }));
}

/// Trains until an error comes, and says what this rank has seen of it. `fault(step)` runs within
/// forward.
void train_until(World& world, const std::function<void(int)>& fault) {
  try {
    Net model;
    DistributedDataParallel ddp(model.parameters(), {}, world);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    for (int step = 0;; ++step) {
      optimizer.zero_grad();
      Tape tape;
      const Tensor loss = loss_of(model, 0, 2);
      fault(step);
      tape.backward(loss);
      optimizer.step();
    }
  } catch (const PeerError& error) {
    say(fmt::format("rank {} saw: {}", world.rank(), error.what()));
    throw;
  }
}

}  // namespace

TEST_CASE("trap 12: a timeout names the call and the rank that it waited for, on every rank") {
  const auto messages = messages_simulated({.size = 3}, [](dist::HostCommunicator& communicator) {
    Net model;
    DistributedDataParallel ddp(model.parameters(), {}, communicator);
    for (int step = 0; step < 3; ++step) {
      Tape tape;
      const Tensor loss = loss_of(model, 0, 2);
      if (step == 2 && communicator.rank() == 1) compute(communicator, 1000);  // never comes
      tape.backward(loss);
    }
  });
  check_all_say(messages, {"'bucket 0", "timed out after 60 s, waiting for rank 1"});
}

TEST_CASE("rank of trap 13" * doctest::skip()) {
  run_rank([](World& world) {
    train_until(world, [&](int step) {
      if (step == 5 && world.rank() == 2) std::raise(SIGKILL);
    });
  });
}

TEST_CASE("trap 13: a rank dies, the others end and name it, and nothing is left") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    Process process(job(3, "rank of trap 13"), {std::string("TRAP_TRANSPORT=") + transport});
    const Ended ended = process.wait();
    CHECK(ended.code == 1);
    CHECK(ended.err == "error: rank 2 was killed by signal 9 (Killed): perhaps out of memory\n");
    for (const char* rank : {"rank 0", "rank 1"}) {
      INFO(ended.out);
      CHECK(count(ended.out, std::string(rank) + " saw: ") == 1);
    }
    CHECK(count(ended.out, "rank 2 is gone") == 2);
    CHECK(process.family().empty());
  }
}

TEST_CASE("rank of trap 14" * doctest::skip()) {
  run_rank([](World& world) {
    train_until(world, [&](int step) {
      if (step == 3 && world.rank() == 1) fail<DataError>("[load] shard-1.bin: no such file");
    });
  });
}

TEST_CASE("trap 14: the launcher tells the error that came first, and not its echoes") {
  const Ended ended = run(job(3, "rank of trap 14"));
  CHECK(ended.code == 1);
  CHECK(ended.err == "error: rank 1 failed with exit code 1: [load] shard-1.bin: no such file\n");
  INFO(ended.out);
  for (const char* rank : {"rank 0", "rank 2"})  // they failed as well, and know why
    CHECK(count(ended.out, std::string(rank) + " saw: ") == 1);
  CHECK(count(ended.out, "rank 1 was ended by an error of its own") == 2);
}

TEST_CASE("rank of trap 16" * doctest::skip()) {
  run_rank([](World& world) {
    say("has met the others");
    while (!std::filesystem::exists(variable("TRAP_FLAG"))) ::usleep(1000);
    const Tensor sum = Tensor::scalar(world.rank() + 1, DType::f64);
    world.communicator().all_reduce(sum.view({1}), "sum").wait();
    say(fmt::format("sum {}", sum.item()));
  });
}

TEST_CASE("trap 16: two jobs at once on one machine do not meet, with nothing configured") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    const std::string flag =
        std::filesystem::temp_directory_path() / fmt::format("lockstep-trap-{}", ::getpid());
    const std::vector<std::string> variables = {std::string("TRAP_TRANSPORT=") + transport,
                                                "TRAP_FLAG=" + flag};
    Process first(job(2, "rank of trap 16"), variables),
        second(job(3, "rank of trap 16"), variables);
    first.wait_for_output("has met the others", 2);
    second.wait_for_output("has met the others", 3);
    std::fclose(std::fopen(flag.c_str(), "w"));
    const Ended two = first.wait(), three = second.wait();
    std::filesystem::remove(flag);
    CHECK(two.err == "");
    CHECK(three.err == "");
    CHECK(count(two.out, "sum 3\n") == 2);
    CHECK(count(three.out, "sum 6\n") == 3);
  }
}

TEST_CASE("trap 16: a port in use, where one is given, is an error with the address") {
  const dist::Descriptor taken = dist::listen_on(dist::Endpoint::parse("127.0.0.1:0"));
  const std::string address = fmt::format("127.0.0.1:{}", dist::local_port(taken.get()));
  const Ended ended =
      run({std::filesystem::read_symlink("/proc/self/exe"), "--no-skip", "-tc=rank of trap 16"},
          {"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2",
           "LOCKSTEP_RENDEZVOUS=" + address, "TRAP_TRANSPORT=tcp"});
  INFO(ended.err);
  CHECK(ended.code == 1);
  CHECK(contains(ended.err, address));
  CHECK(contains(ended.err, "Address already in use"));
}

TEST_CASE("trap 27: every rank knows who computes for how long, and who waits for whom") {
  constexpr int steps = 6;
  check_all_well(messages_simulated({.size = 3}, [](dist::HostCommunicator& communicator) {
    Net model;
    DistributedDataParallel ddp(model.parameters(), {}, communicator);
    for (int step = 0; step < steps; ++step) {
      Tape tape;
      const Tensor loss = loss_of(model, 0, 2);
      compute(communicator, communicator.rank() == 1 ? 15 : 10);
      // The ranks meet in forward, as SyncBatchNorm's do, or in backward.
      if (step % 2 == 0) communicator.barrier("layer").wait();
      tape.backward(loss);
    }
    const dist::StepStatistics& s = ddp.statistics();
    expect(s.steps == steps, "{} steps", s.steps);
    // The clock of an idle world moves in jumps of up to a second. Of the last step's waiting
    // nobody has been told yet.
    const auto about = [](double seconds, double right) {
      return std::abs(seconds - right) < steps;
    };
    const std::vector<double> computing = {10, 15, 10}, waiting = {5, 0, 5};
    for (std::size_t r = 0; r < 3; ++r) {
      expect(about(s.compute_seconds[r], steps * computing[r]), "rank {} computed {} s", r,
             s.compute_seconds[r]);
      expect(about(s.wait_seconds[r], (steps - 1) * waiting[r]), "rank {} waited {} s", r,
             s.wait_seconds[r]);
    }
    const auto& last = ddp.last_step().compute_seconds;
    expect(std::ranges::max_element(last) - last.begin() == 1, "rank 1 is the slow one");
  }));
}
