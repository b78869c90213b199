// Texts that the ranks exchange or compare, and tasks of rank 0.

#include "lockstep/dist/collectives/object_collectives.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <cmath>

#include "support/expect.h"
#include "support/text.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::test;

namespace {

/// Of another length on every rank; empty on one.
std::string text_of(int rank) {
  return std::string(static_cast<std::size_t>(5 * rank % 7), 'a') + (rank % 7 ? "x" : "");
}

/// "rank 1", "ranks 0, 2": those for which it holds.
std::string ranks_where(int size, const std::function<bool(int)>& holds) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank)
    if (holds(rank)) ranks.push_back(rank);
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

/// What each rank throws. As a World does, a rank that throws tells the others that it has ended.
std::vector<std::string> messages_of(const SimOptions& options, Algorithm algorithm,
                                     const SimulatedRank& program) {
  std::vector<std::string> messages(index(options.size));
  const auto as_world = [&](HostCommunicator& communicator) {
    const int rank = communicator.rank();
    try {
      program(communicator);
    } catch (const Error& error) {
      messages[index(rank)] = error.what();
      communicator.abort(fmt::format("rank {} was ended by an error of its own", rank));
    }
  };
  run_simulated(options, as_world, {.algorithm = algorithm});
  return messages;
}

}  // namespace

TEST_CASE("gather_text: every rank gets the text of every other, of any length") {
  for (const int size : {1, 2, 3, 4, 7})
    run_simulated({.size = size}, [=](HostCommunicator& communicator) {
      const auto texts = gather_text(communicator, text_of(communicator.rank()), "texts");
      expect(texts.size() == index(size), "{} texts", texts.size());
      for (int rank = 0; rank < size; ++rank)
        expect(texts[index(rank)] == text_of(rank), "rank {}: '{}'", rank, texts[index(rank)]);
    });
}

TEST_CASE("sum_over_ranks: of numbers that f32 does not hold, the same bits everywhere") {
  for (const int size : {1, 2, 3, 4, 7})
    run_simulated({.size = size}, [=](HostCommunicator& communicator) {
      const double one_third = 1.0 / 3 + communicator.rank();
      const double sum = sum_over_ranks(communicator, one_third);
      const double expected = size / 3.0 + size * (size - 1) / 2.0;
      expect(std::abs(sum - expected) < 1e-12, "{} instead of {}", sum, expected);
      const auto texts = gather_text(communicator, fmt::format("{:a}", sum), "bits");
      for (const std::string& text : texts) expect(text == texts[0], "{}, {}", text, texts[0]);
    });
}

TEST_CASE("check_same: what each rank has at the first line that differs, for all ranks") {
  struct Case {
    std::string other, ours, theirs;
  };
  const std::vector<Case> cases = {
      {"a\nb\nd\n", "c", "d"},          {"x\nb\nc\n", "a", "x"}, {"a\nb\n", "c", "nothing"},
      {"a\nb\nc\nd\n", "nothing", "d"}, {"", "a", "nothing"},
  };
  for (const int size : {2, 3, 4, 7})
    for (int odd = 1; odd < size; ++odd)
      for (const Case& c : cases) {
        CAPTURE(size);
        for (const int last : {odd, size - 1}) {
          const auto differs = [&](int rank) { return rank >= odd && rank <= last; };
          const auto messages = messages_simulated({.size = size}, [&](HostCommunicator& comm) {
            check_same(comm, "what", differs(comm.rank()) ? c.other : "a\nb\nc\n");
          });
          const std::string theirs = ranks_where(size, differs),
                            ours = ranks_where(size, [&](int rank) { return !differs(rank); });
          check_all_say(messages,
                        {"[what] the ranks differ: ", fmt::format("{} on {}", c.ours, ours),
                         fmt::format("{} on {}", c.theirs, theirs)});
          const int others = last - odd + 1;
          const std::string& fewer = others < size - others ? theirs : ours;
          for (const std::string& message : messages)
            CHECK(contains(message, ": " + fewer) == (2 * others != size));
        }
      }
  check_all_well(messages_simulated({.size = 3}, [](HostCommunicator& comm) {
    check_same(comm, "what", "a\nb\n");
    check_same(comm, "what", "");
  }));
}

TEST_CASE("differences: who is in the minority, and nobody without a majority") {
  CHECK(describe(RanksByValue{{"a", {0, 3}}, {"b", {1}}}) ==
        "b on rank 1, a on ranks 0, 3: rank 1 is in the minority");
  CHECK(describe(RanksByValue{{"a", {4}}, {"b", {0, 2, 3}}, {"c", {1}}}) ==
        "a on rank 4, c on rank 1, b on ranks 0, 2, 3: ranks 1, 4 are in the minority");
  CHECK(describe(RanksByValue{{"a", {0}}, {"b", {1}}}) == "a on rank 0, b on rank 1");
  CHECK(describe(RanksByValue{{"a", {0, 1}}, {"b", {2}}, {"c", {3}}}) ==
        "b on rank 2, c on rank 3, a on ranks 0, 1");
}

TEST_CASE("on_rank0: rank 0 throws what its task threw, the others say what it was") {
  for (const int size : {1, 2, 3, 4, 7})
    run_simulated({.size = size}, [](HostCommunicator& communicator) {
      const auto fails = [&] {
        on_rank0(communicator, [&] {
          expect(communicator.rank() == 0, "rank {} runs it", communicator.rank());
          fail<DataError>("[save] the disk is full");
        });
      };
      if (communicator.rank() == 0)
        expect_error<DataError>("[save] the disk is full", fails);
      else
        expect_error<PeerError>("[on_rank0] rank 0 failed: [save] the disk is full", fails);
      int runs = 0;
      on_rank0(communicator, [&] { ++runs; });
      expect(runs == (communicator.rank() == 0), "{} runs", runs);
    });
}

TEST_CASE("on_rank0: the others wait as long as they are told to, longer than for a collective") {
  const auto save_for = [](double seconds) {
    return messages_simulated({.size = 3}, [=](HostCommunicator& communicator) {
      on_rank0(
          communicator,
          [&] {
            const Seconds end = communicator.now() + Seconds(seconds);
            for (unsigned round = 0; communicator.now() < end; ++round)
              communicator.transport().relax(round);
          },
          Seconds(500));
    });
  };
  check_all_well(save_for(400));
  for (const std::string& message : save_for(700)) CHECK(message.find("500 s") != message.npos);
}

TEST_CASE("object collectives: all name the rank whose fault it is, in any order of events") {
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::two_shot})
    for (const int size : {2, 3, 4, 7})
      for (std::uint64_t seed = 0; seed < 30; ++seed) {
        CAPTURE(size);
        CAPTURE(seed);
        const SimOptions options{.seed = seed, .size = size};
        const auto of_save = messages_of(options, algorithm, [](Communicator& communicator) {
          on_rank0(communicator, [] { fail<DataError>("the disk is full"); });
        });
        check_all_say(of_save, {"the disk is full"});
        for (std::size_t r = 1; r < of_save.size(); ++r)
          CHECK(of_save[r].starts_with("[on_rank0] rank 0 failed: "));
        const auto of_check = messages_of(options, algorithm, [](Communicator& communicator) {
          const int last = communicator.size() - 1;
          check_same(communicator, "lists", communicator.rank() == last ? "a" : "b");
        });
        check_all_say(of_check, {fmt::format("a on rank {}", size - 1)});
      }
}

TEST_CASE("whom an error blames has the number of the job, in a group too") {
  const auto culprits = [](const std::function<void(World&, World&)>& program) {
    std::vector<std::string> said(5);
    run_threads(5, {.timeout = Seconds(20)}, [&](World& world) {
      const auto group = world.split(world.rank() < 2 ? -1 : 0);  // ranks 2, 3, 4
      if (!group) return;
      World members = *group;
      try {
        program(world, members);
      } catch (const Error& error) {
        said[index(world.rank())] = test::blamed_by(error);
      }
    });
    return said;
  };
  const auto differs = culprits([](World& world, World& group) {
    check_same(group.communicator(), "test", world.rank() == 3 ? "a" : "b");
  });
  for (const std::size_t r : {2u, 3u, 4u})
    CHECK(differs[r] == "rank 3 is in the minority (1 of the group)");
  const auto failed =
      culprits([](World&, World& group) { on_rank0(group, [] { fail<DataError>("no disk"); }); });
  for (const std::size_t r : {3u, 4u}) CHECK(failed[r] == "rank 2 failed");
  const auto left = culprits([](World& world, World& group) {
    if (world.rank() == 4) return;
    group.communicator().barrier("all").wait();
  });
  // Who hears of it from another rank first knows no more than that one said.
  CHECK((left[2] == "rank 4 left" || left[3] == "rank 4 left"));
}
