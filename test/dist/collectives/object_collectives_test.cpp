// Texts that the ranks exchange or compare, and tasks of rank 0.

#include "lockstep/dist/collectives/object_collectives.h"

#include <doctest/doctest.h>

#include "support/expect.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::test;

namespace {

/// Of another length on every rank; empty on one.
std::string text_of(int rank) {
  return std::string(static_cast<std::size_t>(5 * rank % 7), 'a') + (rank % 7 ? "x" : "");
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

TEST_CASE("check_same: the first rank that differs from rank 0, and the first line, for all") {
  struct Case {
    std::string other, says;
  };
  const std::vector<Case> cases = {
      {"a\nb\nd\n", "at item 2: c on rank 0, d on rank {}"},
      {"x\nb\nc\n", "at item 0: a on rank 0, x on rank {}"},
      {"a\nb\n", "at item 2: c on rank 0, nothing on rank {}"},
      {"a\nb\nc\nd\n", "at item 3: nothing on rank 0, d on rank {}"},
      {"", "at item 0: a on rank 0, nothing on rank {}"},
  };
  for (const int size : {2, 3, 4, 7})
    for (int odd = 1; odd < size; ++odd)
      for (const Case& c : cases) {
        CAPTURE(size);
        const auto messages = messages_simulated({.size = size}, [&](HostCommunicator& comm) {
          check_same(comm, "what", comm.rank() == odd ? c.other : "a\nb\nc\n");
        });
        check_all_say(messages, {fmt::format("[what] rank {} differs from rank 0 ", odd),
                                 fmt::format(fmt::runtime(c.says), odd)});
      }
  check_all_well(messages_simulated({.size = 3}, [](HostCommunicator& comm) {
    check_same(comm, "what", "a\nb\n");
    check_same(comm, "what", "");
  }));
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
        expect_error<StateError>("[on_rank0] rank 0 failed: [save] the disk is full", fails);
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
