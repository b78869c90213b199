// What a rank tells its launcher: one line, there and back, whatever is in it.

#include "lockstep/dist/rendezvous/events/rank_event.h"

#include <doctest/doctest.h>

#include <climits>
#include <string>
#include <vector>

#include "lockstep/dist/rendezvous/events/launcher_pipe.h"

using namespace lockstep;
using dist::RankEvent, dist::ReplicaRecord;

namespace {

std::vector<RankEvent> events() {
  std::vector<RankEvent> all;
  for (int kind = 0; kind <= static_cast<int>(RankEvent::Kind::wanted); ++kind)
    all.push_back({.kind = static_cast<RankEvent::Kind>(kind),
                   .rank = 3 + kind,
                   .number = 70 + kind,
                   .seconds = 0.1 + kind,
                   .replica = {~std::uint64_t(0) - static_cast<unsigned>(kind), 1},
                   .failure = {kind % 2 == 1,
                               "cause echo: a\tb",
                               {{1, 20, 300}, static_cast<Fault>(kind % 8), "(2 of the group)"}}});
  all.push_back({});
  return all;
}

}  // namespace

TEST_CASE("rank event: there and back, of each kind, with each field") {
  for (const RankEvent& event : events()) {
    const std::string line = event.text();
    REQUIRE(line.ends_with('\n'));
    CHECK(line.find('\n') == line.size() - 1);
    for (const std::string& read_line : {line, line.substr(0, line.size() - 1)}) {
      const auto read = RankEvent::read(read_line);
      REQUIRE(read);
      CHECK(read->kind == event.kind);
      CHECK(read->rank == event.rank);
      CHECK(read->number == event.number);
      CHECK(read->seconds == event.seconds);
      CHECK(read->replica == event.replica);
      CHECK(read->failure.consequence == event.failure.consequence);
      CHECK(read->failure.message == visible(event.failure.message));
      CHECK(read->failure.blame == event.failure.blame);
    }
  }
}

TEST_CASE("rank event: of any length it is written into the pipe as a whole, on one line") {
  for (const std::size_t length : {0, 100, PIPE_BUF - 100, PIPE_BUF, 3 * PIPE_BUF}) {
    CAPTURE(length);
    RankEvent event{.kind = RankEvent::Kind::failed, .replica = {~std::uint64_t(0), 1}};
    event.failure = {true, std::string(length, 'x'), {{}, Fault::hangs, std::string(length, 'y')}};
    for (std::size_t rank = 0; rank < length / 10; ++rank)
      event.failure.blame.ranks.push_back(static_cast<int>(1000 + rank));
    const std::string line = event.text();
    CHECK(line.size() <= PIPE_BUF);  // pipe(7): more may be mixed with another rank's
    const auto read = RankEvent::read(line);
    REQUIRE(read);
    CHECK(read->failure.message.size() >= std::min<std::size_t>(length, PIPE_BUF - 1000));
    CHECK(read->failure.blame.detail.size() == std::min<std::size_t>(length, 300));
    CHECK(read->failure.blame.known() == event.failure.blame.known());
    event.failure.blame = {};  // what it leaves, the message has
    const auto unblamed = RankEvent::read(event.text());
    REQUIRE(unblamed);
    CHECK(unblamed->failure.message.size() >= std::min<std::size_t>(length, PIPE_BUF - 200));
  }
  RankEvent cut{.kind = RankEvent::Kind::failed};  // not in the middle of a character
  for (const std::size_t before : {0, 1}) {
    cut.failure.message = std::string(before, 'x');
    while (cut.failure.message.size() < PIPE_BUF) cut.failure.message += "\u00e9";
    const auto read = RankEvent::read(cut.text());
    REQUIRE(read);
    CHECK(read->failure.message == visible(read->failure.message));
  }
}

TEST_CASE("rank event: what is none, as a program may write it into the pipe, is refused") {
  const std::string whole = RankEvent{.kind = RankEvent::Kind::suspected, .rank = 1}.text();
  REQUIRE(RankEvent::read(whole));
  for (const char* line : {"", "\n", "x", "cause x", "0\t1", "\x01", "\t\t\t\t\t\t\t\t\t\t"})
    CHECK_FALSE(RankEvent::read(line));
  CHECK_FALSE(RankEvent::read("\t" + whole));
  CHECK_FALSE(RankEvent::read("99" + whole));                       // no such kind
  CHECK_FALSE(RankEvent::read("4\t-1\t0\t0\t0\t0\t0\t0\t\t\t\n"));  // no such rank
  CHECK_FALSE(RankEvent::read("4\t1\t0\tnan\t0\t0\t0\t0\t\t\t\n"));
  CHECK_FALSE(RankEvent::read("4\t1\t0\t-1\t0\t0\t0\t0\t\t\t\n"));
  CHECK_FALSE(RankEvent::read("4\t1\t0\t0\t0\t0\t2\t0\t\t\t\n"));
  CHECK_FALSE(RankEvent::read("4\t1\t0\t0\t0\t0\t0\t99\t\t\t\n"));  // no such fault
  for (const char* ranks : {",", "1,", ",1", "x", "-1", "1 2", "99999999999"})
    CHECK_FALSE(RankEvent::read(fmt::format("4\t1\t0\t0\t0\t0\t0\t0\t{}\t\t\n", ranks)));
}

TEST_CASE("rank event: without a launcher nobody is told, and nothing fails") {
  CHECK_FALSE(dist::tell_launcher({.kind = RankEvent::Kind::ready}));
}

TEST_CASE("blame: as text, of one rank and of several") {
  using enum Fault;
  const std::vector<std::vector<std::string>> words = {
      {"hangs", "hang"},
      {"is missing", "are missing"},
      {"is gone", "are gone"},
      {"left", "left"},
      {"is in the minority", "are in the minority"},
      {"failed", "failed"},
      {"has a gradient that is infinite or NaN", "have gradients that are infinite or NaN"},
      {"computed wrongly", "computed wrongly"}};
  const Fault faults[] = {hangs, missing, gone, left, in_minority, failed, nonfinite, miscomputed};
  for (std::size_t i = 0; i < words.size(); ++i) {
    CHECK(text_of({{7}, faults[i]}) == "rank 7 " + words[i][0]);
    CHECK(text_of({{1, 10}, faults[i], "in step 5"}) ==
          "ranks 1, 10 " + words[i][1] + " in step 5");
    CHECK(deed_of({{1}, faults[i]}) == words[i][0]);
    CHECK(text_of({{}, faults[i]}) == "");
  }
}
