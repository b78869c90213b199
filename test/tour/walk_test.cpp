// `walk --step` tells one step of a ring, whole and in order, on any number of ranks.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lockstep/samples/common/simulated.h"
#include "lockstep/samples/walk/events.h"
#include "support/text.h"

using namespace lockstep;
using test::contains;

namespace {

/// What is said of a rank, without its time, in order.
std::vector<std::string> said_of(int rank, const std::vector<std::string>& lines) {
  const std::string who = fmt::format("rank {}  ", rank);
  std::vector<std::string> result;
  for (const std::string& line : lines)
    if (const auto at = line.find(who); at != line.npos && at < line.find('\n'))
      result.push_back(line.substr(at + who.size()));
  return result;
}

std::size_t place(const std::vector<std::string>& said, const std::string& text) {
  const auto found =
      std::ranges::find_if(said, [&](const std::string& line) { return contains(line, text); });
  return static_cast<std::size_t>(found - said.begin());
}

}  // namespace

TEST_CASE("walk --step: each rank's step, from the begin of backward to the optimizer") {
  for (const int n : {2, 3, 8}) {
    CAPTURE(n);
    const auto traces = samples::run({.ranks = n});
    for (const int step : {1, 2}) {
      const std::vector<std::string> lines = samples::events_of_step(traces, step);
      double before = 0;
      for (const std::string& line : lines) {
        CHECK(std::stod(line) >= before);
        before = std::stod(line);
      }
      for (int rank = 0; rank < n; ++rank) {
        const std::vector<std::string> said = said_of(rank, lines);
        CAPTURE(rank);
        REQUIRE(!said.empty());
        CHECK(contains(said.front(), "backward of"));
        CHECK(said.back() == "the optimizer steps, on the sums");
        const auto times = [&](const std::string& text) {
          return std::ranges::count_if(
              said, [&](const std::string& line) { return contains(line, text); });
        };
        CHECK(times("the optimizer steps") == 1);
        CHECK(times("has read the step metadata of all ranks: commit") == 1);
        for (int bucket = 0; bucket < 3; ++bucket) {
          CAPTURE(bucket);
          const std::string ring = fmt::format("ring of bucket {}, step", bucket);
          CHECK(times(ring) == 2 * (n - 1));
          CHECK(times(ring + fmt::format(" {}:", 2 * (n - 1) - 1)) == 1);
          CHECK(std::ranges::count_if(said, [&](const std::string& line) {
                  return line.starts_with(ring) &&
                         contains(line.substr(0, line.find('\n')), ", is added");
                }) == n - 1);
          const std::size_t begins =
                                place(said, fmt::format("the ring of bucket {} begins", bucket)),
                            last = place(said, ring + fmt::format(" {}:", 2 * (n - 1) - 1)),
                            arrived = place(said, fmt::format("bucket {} has arrived", bucket));
          CHECK(begins < last);
          const int next = (rank + 1) % n;  // in a ring a rank sends to it alone
          CHECK(contains(said[begins],
                         fmt::format("; part {} goes to rank {}\n", (rank + n - 1) % n, next)));
          CHECK(std::ranges::count_if(said, [&](const std::string& line) {
                  return line.starts_with(ring) &&
                         contains(line, fmt::format(", goes on to rank {}\n", next));
                }) == 2 * (n - 1) - 1);
          CHECK_FALSE(contains(said[last], "goes on"));
          CHECK(last < arrived);
          CHECK(arrived < said.size());
          if (bucket > 0)
            CHECK(place(said, fmt::format("bucket {} has arrived", bucket - 1)) < begins);
          // The rank's own cells are full when the last step of the ring has ended.
          std::string all;
          for (int r = 0; r < n; ++r) all += std::to_string(r);
          std::string full;
          for (int part = 0; part < n; ++part) full += "|" + all;
          const std::string drawn = said[last].substr(said[last].find('\n') + 1);
          const std::size_t width = full.size() + 1 + 3;  // of a rank's cells, and the space before
          CHECK(drawn.substr(22 + 3 + static_cast<std::size_t>(rank) * width, full.size()) == full);
        }
      }
    }
  }
}

TEST_CASE("walk --step: what comes into the sum is added, what comes into the buffer replaces") {
  // Of a ring that begins with the gathering: a part that is replaced is not complete then.
  auto traces = samples::run({.ranks = 2});
  for (traces::RankTrace& trace : traces)
    for (traces::Event& event : trace.events)
      if (event.category == "step")
        event.arguments["into"] = event.arguments["into"] == "sum" ? "buffer" : "sum";
  const std::vector<std::string> lines = samples::events_of_step(traces, 1);
  for (const int rank : {0, 1}) {
    const std::vector<std::string> said = said_of(rank, lines);
    const std::size_t at = place(said, "ring of bucket 0, step 0:");
    REQUIRE(at < said.size());
    CAPTURE(said[at]);
    CHECK(contains(said[at], ", is complete, goes on to rank"));
    const auto part = static_cast<std::size_t>(said[at].at(said[at].find("part ") + 5) - '0');
    const std::size_t width = 7 + 3;  // of a rank's cells, |01|01|, and the space before
    const std::size_t cell = 22 + 3 + static_cast<std::size_t>(rank) * width + 1 + 3 * part;
    const std::string drawn = said[at].substr(said[at].find('\n') + 1);
    CHECK(drawn.substr(cell, 2) == (rank == 0 ? "1 " : "0 "));
  }
}
