// What all ranks throw for one of them is that rank's, whoever is the last to hear of it.

#include "lockstep/dist/collectives/object_collectives.h"

#include <doctest/doctest.h>

#include "support/worlds.h"

namespace lockstep {
namespace {

/// What each rank throws. As a World does, a rank that throws tells the others that it has ended.
std::vector<std::string> messages_of(const dist::SimOptions& options, dist::Algorithm algorithm,
                                     const test::SimulatedRank& program) {
  std::vector<std::string> messages(dist::index(options.size));
  const auto as_world = [&](dist::HostCommunicator& communicator) {
    const int rank = communicator.rank();
    try {
      program(communicator);
    } catch (const Error& error) {
      messages[dist::index(rank)] = error.what();
      communicator.abort(fmt::format("rank {} was ended by an error of its own", rank));
    }
  };
  test::run_simulated(options, as_world, {.algorithm = algorithm});
  return messages;
}

TEST_CASE("object collectives: all name the rank whose fault it is, in any order of events") {
  for (const dist::Algorithm algorithm : {dist::Algorithm::ring, dist::Algorithm::two_shot})
    for (const int size : {2, 3, 4, 7})
      for (std::uint64_t seed = 0; seed < 30; ++seed) {
        CAPTURE(size);
        CAPTURE(seed);
        const dist::SimOptions options{.seed = seed, .size = size};
        const auto of_save = messages_of(options, algorithm, [](dist::Communicator& communicator) {
          dist::on_rank0(communicator, [] { fail<DataError>("the disk is full"); });
        });
        test::check_all_say(of_save, {"the disk is full"});
        for (std::size_t r = 1; r < of_save.size(); ++r)
          CHECK(of_save[r].starts_with("[on_rank0] rank 0 failed: "));
        const auto of_check = messages_of(options, algorithm, [](dist::Communicator& communicator) {
          const int last = communicator.size() - 1;
          dist::check_same(communicator, "lists", communicator.rank() == last ? "a" : "b");
        });
        test::check_all_say(of_check, {fmt::format("rank {} differs from rank 0", size - 1)});
      }
}

}  // namespace
}  // namespace lockstep
