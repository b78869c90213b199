// What a communicator remembers, and what a timeout says of the others.

#include "lockstep/dist/collectives/flight_recorder.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>

#include "lockstep/dist/collectives/host_communicator.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;

using test::message_of;

TEST_CASE("the recorder remembers the last calls, and how they ended") {
  FlightRecorder recorder(2);
  CHECK(recorder.last_seen(1) == "this rank last finished nothing; rank 1 was never heard from");
  CallHeader header;
  header.operation = Operation::all_reduce;
  for (std::uint64_t k = 0; k < 100; ++k) {
    header.sequence = k;
    header.count = 10;
    header.set_name("bucket");
    recorder.called(header, Seconds(static_cast<double>(k)));
    const std::optional<Seconds> end = Seconds(static_cast<double>(k) + 0.25);
    if (k < 99) recorder.finished(k, k == 98 ? std::nullopt : end, "call");
  }
  recorder.heard(1, header);
  CHECK(recorder.last_seen(1) ==
        "this rank last finished #98 'bucket'; rank 1 was last heard from in #99 'bucket'");
  const std::string text = recorder.text(Seconds(101));
  CHECK(std::ranges::count(text, '\n') == FlightRecorder::remembered);
  CHECK(
      text.starts_with("all_reduce #36 'bucket' of 10 f32 (two-shot)   called 65.000 s ago   done "
                       "after 250000.0 us\n"));
  CHECK(text.find(
            "#98 'bucket' of 10 f32 (two-shot)   called 3.000 s ago   done when waited for\n") !=
        text.npos);
  CHECK(
      text.ends_with("#99 'bucket' of 10 f32 (two-shot)   called 2.000 s ago   under way for "
                     "2000000.0 us\n"));
}

TEST_CASE("the end of a call that is forgotten is not taken for that of a later one") {
  FlightRecorder recorder(2);
  for (std::uint64_t k = 0; k < FlightRecorder::remembered + 4; ++k) {
    CallHeader header{.operation = Operation::all_reduce, .sequence = k, .count = 10};
    recorder.called(header, Seconds(0));
  }
  recorder.finished(3, Seconds(1), "call");  // its entry is now that of call 67
  CHECK(recorder.text(Seconds(2)).find("done") == std::string::npos);
  CHECK(recorder.last_seen(1) == "this rank last finished #3; rank 1 was never heard from");
}

TEST_CASE("a rank that does not come to allocate is named") {
  const SimReport report =
      simulate({.size = 3, .faults = {{1, 1, SimFault::Kind::stall, Seconds(1000)}}},
               [](int, std::unique_ptr<Transport> transport) {
                 HostCommunicator comm(std::move(transport));
                 (void)comm.allocate(16, DType::f32);
               });
  for (const int rank : {0, 2})
    CHECK(message_of(report.errors[index(rank)]).find("rank 1 is missing") != std::string::npos);
}
