// How a Trace ends, and what it does not keep.

#include <doctest/doctest.h>

#include <map>
#include <vector>

#include "lockstep/core/trace/recorder.h"

using namespace lockstep;

TEST_CASE("trace: communicators beyond the 255th have no track, and what is on none is counted") {
  std::int64_t now = 0;
  trace::Recorder recorder([&] { return ++now; }, 10'000);
  constexpr std::size_t many = 300, most = 255;
  const std::vector<int> communicators(many);
  for (int round = 0; round < 2; ++round)
    for (const int& one : communicators)
      for (const auto kind : {trace::Kind::step, trace::Kind::collective})
        recorder.add({.kind = kind, .communicator = recorder.number_of(&one)});
  CHECK(recorder.size() == 2 * 2 * most);
  CHECK(recorder.dropped() == 2 * 2 * (many - most));
  std::map<int, int> events;
  for (const auto& chunk : recorder.events())
    for (const trace::Event& event : chunk) ++events[event.communicator];
  CHECK(events.size() == most);
  for (const auto& [track, its] : events) CHECK(its == 4);  // of one communicator alone
}
