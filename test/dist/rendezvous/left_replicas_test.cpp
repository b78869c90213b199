// What ranks leave for a last comparison, and who then differs.

#include "lockstep/dist/rendezvous/events/left_replicas.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>

#include "lockstep/dist/rendezvous/events/rank_event.h"

using namespace lockstep::dist;

TEST_CASE("left replicas: the line that a rank leaves for its launcher") {
  int pipe[2];  // as the launcher's
  REQUIRE(::pipe(pipe) == 0);
  ::setenv("LOCKSTEP_ERROR_FD", std::to_string(pipe[1]).c_str(), 1);
  leave_replica({}, 255, 1);
  ::unsetenv("LOCKSTEP_ERROR_FD");
  ::close(pipe[1]);
  char line[256] = {};
  REQUIRE(::read(pipe[0], line, sizeof line - 1) > 0);
  const auto event = RankEvent::read(line);
  REQUIRE(event);
  CHECK(event->kind == RankEvent::Kind::replica);
  CHECK(event->replica == ReplicaRecord{255, 1});
  ::close(pipe[0]);
}

TEST_CASE("left replicas: who differs from most, and only within a model") {
  LeftReplicas left;
  CHECK(left.difference() == "");
  for (const int rank : {0, 1, 2, 3}) left.add(7, rank, 100);
  left.add(8, 0, 5);  // another model, which one rank has
  CHECK(left.difference() == "");
  for (const int rank : {0, 1, 2, 3, 4}) left.add(9, rank, rank % 2 == 0 ? 6 : 10 + rank);
  CHECK(left.difference().starts_with("ranks 1, 3 ended with another replica than ranks 0, 2, 4:"));
  left.add(9, 4, 11);  // nobody has more than half of the ranks on its side
  CHECK(left.difference().starts_with(
      "ranks 0, 2 and ranks 1, 4 and rank 3 ended with different replicas:"));
}

TEST_CASE("left replicas: nothing is kept of a model whose replicas have all ended alike") {
  LeftReplicas left;
  for (std::uint64_t model = 2; model < 200; ++model)
    for (const std::uint64_t fingerprint : {not_ended, model})
      for (const int rank : {0, 1, 2}) left.add(model, rank, fingerprint, 3);
  CHECK(left.models() == 0);
  for (const int rank : {0, 1}) left.add(7, rank, 5, 3);  // one of three is still to end
  CHECK(left.models() == 1);
  left.add(7, 2, 6, 3);  // otherwise
  CHECK(left.models() == 1);
  CHECK(left.difference().starts_with("rank 2 ended with another replica than ranks 0, 1"));
  for (const int rank : {0, 1, 2}) left.add(8, rank, not_ended, 3);
  for (const int rank : {0, 1, 2}) left.add(9, rank, not_compared, 3);
  CHECK(left.models() == 3);
}

TEST_CASE("left replicas: who did not end, and who was told, in any order") {
  LeftReplicas left;
  left.add(7, 0, not_ended);
  CHECK(left.difference() == "");  // there is nothing to compare it with
  for (const int rank : {1, 2}) left.add(7, rank, not_ended);
  CHECK(left.difference().starts_with("ranks 0, 1, 2 did not end their DistributedDataParallel"));
  left.add(7, 0, 5);
  left.add(7, 2, 5);
  CHECK(left.difference().starts_with("rank 1 did not end the DistributedDataParallel"));
  left.add(7, 1, not_compared);
  CHECK(left.difference() == "");
}
