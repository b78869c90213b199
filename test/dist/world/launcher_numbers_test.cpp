// The numbers by which people know the ranks of a job that loses some: those of its launcher.

#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "lockstep/dist/world/launcher_link.h"
#include "lockstep/dist/world/world.h"

using namespace lockstep;

namespace {

std::string blamed_outside(const std::string& culprit) {
  StateError error = blaming(culprit, StateError("it fails"));
  dist::blame_by_launcher_number(error, {.number = 2, .members = {0, 3, 4, 12}});
  return error.culprit ? *error.culprit : "";
}

}  // namespace

TEST_CASE("launcher numbers: whom an error blames, those outside know by these") {
  CHECK(blamed_outside("rank 1 hangs") == "rank 3 hangs");
  CHECK(blamed_outside("rank 3 is in the minority") == "rank 12 is in the minority");
  CHECK(blamed_outside("rank 2 is in the minority (1 of the group)") ==
        "rank 4 is in the minority (1 of the group)");
  CHECK(blamed_outside("ranks 1, 3 are missing") == "ranks 3, 12 are missing");
  CHECK(blamed_outside("rank 2 computed lane 5 wrongly") == "rank 4 computed lane 5 wrongly");
  CHECK(blamed_outside("rank 4 hangs") == "rank 4 hangs");  // there is none
  CHECK(blamed_outside("the cable") == "the cable");
  CHECK(blamed_outside("") == "");
}

TEST_CASE("launcher numbers: texts have them, also those of groups") {
  run_threads(4, {}, [](World& world) {
    dist::Communicator& all = world.communicator();
    CHECK(all.known_as(2) == 2);
    all.refuse_if_ranks_may_be_lost("it", "no reason");  // none may be
    all.set_survival(std::make_shared<dist::Survival>(dist::Survival{{0, 3, 4, 12}}));
    CHECK(all.rank_in_job(2) == 2);
    CHECK(all.known_as(2) == 4);
    CHECK(world.layer_communicator().known_as(2) == 4);
    const auto group = world.split(world.rank() % 2);
    REQUIRE(group);
    CHECK(group->communicator().known_as(1) == (world.rank() % 2 ? 12 : 4));
    CHECK_THROWS_WITH_AS(group->communicator().refuse_if_ranks_may_be_lost("it", "so it is"),
                         "[survive] it cannot go on without a lost rank: so it is. Start the job "
                         "without --survive, or leave that out",
                         UsageError);
    const std::string other = world.rank() == 3 ? "b" : "a";
    CHECK_THROWS_WITH_AS(dist::check_same(all, "test", other),
                         "[test] the ranks differ: b on rank 12, a on ranks 0, 3, 4: rank 12 is in "
                         "the minority",
                         StateError);
  });
}
