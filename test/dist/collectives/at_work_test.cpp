// Ranks wait for another one's own work: as long as it is at work, and no longer.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/world/world.h"
#include "lockstep/kernels/elementwise.h"
#include "support/expect.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

constexpr Seconds timeout{0.8};

/// What each rank throws; empty: nothing. `others_failed`: all ranks but `worker` have.
std::vector<std::string> messages(
    int size, int worker, const std::function<void(World&, const std::atomic<bool>&)>& program) {
  std::vector<std::string> said(index(size));
  std::atomic<int> failed{0};
  std::atomic<bool> others_failed{false};
  try {
    run_threads(size, {.timeout = timeout}, [&](World& world) {
      try {
        program(world, others_failed);
      } catch (const Error& error) {
        said[index(world.rank())] = error.blame ? text_of(*error.blame) : error.what();
        if (world.rank() != worker && ++failed == size - 1) others_failed = true;
        throw;
      }
    });
  } catch (const Error&) {
    // It is in `said`.
  }
  return said;
}

/// The first who gives up says that the rank hangs, others may only say that this one has said so.
void check_all_name(int rank, const std::vector<std::string>& said) {
  int found = 0;
  for (std::size_t r = 0; r < said.size(); ++r) {
    if (r == index(rank)) continue;
    if (said[r] == fmt::format("rank {} hangs", rank))
      ++found;
    else
      CHECK_MESSAGE(said[r].find(fmt::format("waiting for rank {} ", rank)) != std::string::npos,
                    said[r]);
  }
  CHECK(found > 0);
}

void sleep_beyond_timeout() { std::this_thread::sleep_for(2.5 * timeout); }
void compute_beyond_timeout() {
  const Tensor x = Tensor::full({100}, 1.0);
  const auto end = std::chrono::steady_clock::now() + 2.5 * timeout;
  while (std::chrono::steady_clock::now() < end) kernels::scale(1.0, x, x, false);
}

}  // namespace

TEST_CASE("at work: ranks wait for one whose disk is slow, or that computes, beyond the timeout") {
  for (void (*const work)() : {sleep_beyond_timeout, compute_beyond_timeout}) {
    for (const std::string& said : messages(3, 0, [&](World&world, const auto&) {
           on_rank0(world.communicator(), work);
           on_every_rank(world.communicator(), [&] {
             if (world.rank() == 2) work();
           });
         }))
      CHECK(said == "");
    // Others may wait for those who wait.
    for (const std::string& said : messages(4, 1, [&](World&world, const auto&) {
           auto group = world.split(world.rank() == 0 ? -1 : 0);  // ranks 1, 2, 3
           if (group) on_rank0(group->communicator(), work);
           world.communicator().barrier("all").wait();
         }))
      CHECK(said == "");
  }
}

TEST_CASE("at work: a rank that loops in its work hangs, and all others name it") {
  const auto loop = [](const std::atomic<bool>& others_failed) {
    while (!others_failed) {
    }
  };
  const auto rank0 = messages(3, 0, [&](World& world, const std::atomic<bool>& others_failed) {
    on_rank0(world.communicator(), [&] { loop(others_failed); });
  });
  check_all_name(0, rank0);
  const auto each = messages(3, 2, [&](World& world, const std::atomic<bool>& others_failed) {
    on_every_rank(world.communicator(), [&] {
      if (world.rank() == 2) loop(others_failed);
    });
  });
  check_all_name(2, each);
}

TEST_CASE("at work: a timeout of its own counts, whatever the rank does meanwhile") {
  const auto waits = [](Seconds own) {
    return messages(2, 0, [=](World& world, const std::atomic<bool>& others_failed) {
      const auto end = std::chrono::steady_clock::now() + 2.5 * timeout;
      const auto loop = [&] {
        while (!others_failed && std::chrono::steady_clock::now() < end) {
        }
      };
      on_rank0(world.communicator(), loop, own);
    });
  };
  CHECK(waits(Seconds(600))[1] == "");
  const auto sleeps = messages(2, 0, [](World& world, const std::atomic<bool>& others_failed) {
    const auto until = [&] {
      while (!others_failed) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    };
    on_rank0(world.communicator(), until, timeout / 2);
  });
  CHECK(sleeps[1] == "rank 0 hangs");
}

TEST_CASE("at work: who waits for ever, or for longer than a clock can tell, learns of its end") {
  for (const double seconds : {1e12, std::numeric_limits<double>::infinity()}) {
    std::atomic<int> ended{0};
    run_threads(2, {.timeout = Seconds(seconds)}, [&](World& world) {
      on_rank0(world.communicator(),
               [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
      ++ended;
    });
    CHECK(ended == 2);
  }
}
