// The numbers by which people know the ranks of a job that loses some: those of its launcher. And
// what a rank of such a job asks it, and tells it: with a launcher in virtual time.

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/dist/world/launcher_link.h"
#include "lockstep/dist/world/world.h"
#include "support/text.h"

using namespace lockstep;
using dist::Generation, dist::RankEvent, dist::Seconds;

namespace {

std::string blamed_outside(const Blame& blame) {
  StateError error = blaming(blame, StateError("it fails"));
  dist::blame_by_launcher_number(error, {.number = 2, .members = {0, 3, 4, 12}});
  return test::blamed_by(error);
}

}  // namespace

TEST_CASE("launcher numbers: whom an error blames, those outside know by these") {
  using enum Fault;
  CHECK(blamed_outside({{1}, hangs}) == "rank 3 hangs");
  CHECK(blamed_outside({{3}, in_minority}) == "rank 12 is in the minority");
  CHECK(blamed_outside({{2}, in_minority, "(1 of the group)"}) ==
        "rank 4 is in the minority (1 of the group)");
  CHECK(blamed_outside({{1, 3}, missing}) == "ranks 3, 12 are missing");
  CHECK(blamed_outside({{2}, miscomputed, "(lane 5)"}) == "rank 4 computed wrongly (lane 5)");
  CHECK(blamed_outside({{4}, hangs}) == "rank 4 hangs");  // there is none
  CHECK(blamed_outside({}) == "");
}

TEST_CASE("launcher numbers: texts have them, also those of groups") {
  run_threads(4, {}, [](World& world) {
    dist::Communicator& all = world.communicator();
    CHECK(all.membership().known_as(2) == 2);
    all.membership().refuse_if_ranks_may_be_lost("it", "no reason");  // none may be
    all.membership().survival = std::make_shared<dist::Survival>(dist::Survival{{0, 3, 4, 12}});
    CHECK(all.membership().in_job(2) == 2);
    CHECK(all.membership().known_as(2) == 4);
    CHECK(world.layer_communicator().membership().known_as(2) == 4);
    const auto group = world.split(world.rank() % 2);
    REQUIRE(group);
    CHECK(group->communicator().membership().known_as(1) == (world.rank() % 2 ? 12 : 4));
    CHECK_THROWS_WITH_AS(
        group->communicator().membership().refuse_if_ranks_may_be_lost("it", "so it is"),
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

namespace {

/// Publishes `next` at the time `at`. A pause takes 10 ms.
struct TimedLink final : dist::LauncherLink {
  int rank() const override { return own; }
  Generation newest() override { return time >= at ? next : first; }
  void tell(const RankEvent& event) noexcept override {
    if (event.kind == RankEvent::Kind::ready) ready.push_back(time.count());
    if (event.kind == RankEvent::Kind::suspected) suspicions.push_back(event);
  }
  Seconds now() const override { return time; }
  void pause() override { time += Seconds(0.01); }
  std::shared_ptr<dist::Fabric> meet(const Generation&) override { return nullptr; }

  int own = 0;
  Generation first{.number = 3, .members = {0, 2}}, next{.number = 4, .members = {0, 2, 5}};
  Seconds at{0}, time{0};
  std::vector<double> ready;
  std::vector<RankEvent> suspicions;
};

}  // namespace

TEST_CASE("launcher link: a rank that is in asks for nothing; another one asks once, and waits") {
  for (const int member : {0, 2}) {
    TimedLink link;
    link.own = member;
    link.at = Seconds(1);
    CHECK(dist::let_in(link).number == 3);
    CHECK(link.ready.empty());
    CHECK(link.time == Seconds(0));
  }
  for (const double at : {0.05, 1.0, 59.0}) {
    TimedLink link;
    link.own = 5;
    link.at = Seconds(at);
    CHECK(dist::let_in(link).members == std::vector<int>{0, 2, 5});
    CHECK(link.ready == std::vector<double>{0});
    CHECK(link.time.count() >= at);
  }
  TimedLink link;
  link.own = 7;
  CHECK_THROWS_WITH_AS(dist::let_in(link),
                       "[survive] rank 7 was not let in among the ranks 0, 2, 5", CommError);
  CHECK(link.time.count() > 59);
  CHECK(link.time.count() < 61);
}

TEST_CASE("launcher link: a newer generation is waited for, for five seconds") {
  for (const double at : {0.0, 0.5, 4.9}) {
    TimedLink link;
    link.at = Seconds(at);
    CHECK(dist::newer_than(link, 2));
    CHECK(link.time == Seconds(0));
    CHECK(dist::newer_than(link, 3));
    CHECK(link.time.count() >= at);
  }
  TimedLink link;
  link.at = Seconds(5.1);
  CHECK_FALSE(dist::newer_than(link, 3));
  CHECK(link.time.count() > 4.9);
  link.time = Seconds(6);
  CHECK_FALSE(dist::newer_than(link, 4));
  CHECK(dist::newer_than(link, 3));
}

TEST_CASE("launcher link: who is blamed is suspected, by the launcher's number, with the reason") {
  const Generation generation{.number = 3, .members = {1, 4, 6, 9}};
  const auto told = [&](const Blame& blame, int own) {
    TimedLink link;
    dist::suspect_blamed(link, blaming(blame, CommError("it fails")), generation, own);
    REQUIRE(link.suspicions.size() < 2);
    if (link.suspicions.empty()) return std::string();
    const RankEvent& event = link.suspicions[0];
    CHECK(event.failure.blame.ranks == std::vector{event.rank});
    return fmt::format("{} {}: {}", event.number, event.rank, deed_of(event.failure.blame));
  };
  using enum Fault;
  for (const int own : {0, 2}) {
    CHECK(told({{1}, hangs}, own) == "3 4: hangs");
    CHECK(told({{3}, gone}, own) == "3 9: is gone");
    CHECK(told({{1, 3}, missing}, own) == "3 4: is missing");
    CHECK(told({{3, 1}, missing}, own) == "3 9: is missing");
    CHECK(told({{3}, in_minority, "(1 of the group)"}, own) ==
          "3 9: is in the minority (1 of the group)");
    for (const Blame& nobody : {Blame{}, Blame{{4}, hangs}, Blame{{-1}, hangs}})
      CHECK(told(nobody, own) == "");
  }
  for (int own = 0; own < 4; ++own)
    CHECK(told({{own}, hangs}, own) == "");  // nobody suspects itself

  TimedLink link;  // an echo of another rank's error
  dist::suspect_blamed(link, blaming(Blame{{1}, gone}, PeerError("rank 1 is gone")), generation, 0);
  CHECK(link.suspicions.empty());
}
