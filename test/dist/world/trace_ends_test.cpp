// How a Trace ends, and what it does not keep.

#include <doctest/doctest.h>

#include <map>
#include <vector>

#include "lockstep/core/trace/recorder.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

TEST_CASE("trace: exposed time of layers' collectives is in that of the world's communicator") {
  for (const bool linked_first : {false, true}) {
    CAPTURE(linked_first);
    run_threads(2, {}, [&](World& world) {
      dist::Communicator& all = world.communicator();
      if (linked_first) (void)world.layer_communicator();
      const dist::Seconds before = all.exposed();
      world.layer_communicator().barrier("of a layer").wait();
      CHECK((all.exposed() - before).count() > 0);
      CHECK((all.exposed() - before).count() ==
            doctest::Approx(world.layer_communicator().exposed().count()));
    });
  }
}

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
