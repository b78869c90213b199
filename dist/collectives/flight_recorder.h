#pragma once
/// What a communicator remembers of its last calls: always on, a few stores per call; printed when
/// something has gone wrong.
///
///   all_reduce #17 'bucket 0' of 133904 f32 (two-shot)   called 60.001 s ago   done after 210.4 us
///   all_reduce #18 'bucket 1' of 401982 f32 (two-shot)   called 60.000 s ago   under way for ...
///
/// It also knows in which call each other rank was last heard from, which shows the rank that is
/// behind.
///
/// Thread-safety: none; it belongs to its communicator.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/trace/recorder.h"
#include "lockstep/dist/collectives/call_header.h"
#include "lockstep/dist/collectives/plan/plan.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// A step's action and what it goes into, as one number of an event (Kind::step), and back.
constexpr std::int64_t packed(Step::Action action, Step::Into into) {
  return static_cast<std::int64_t>(action) + 256 * static_cast<std::int64_t>(into);
}
constexpr Step::Action action_of(std::int64_t packed) {
  return static_cast<Step::Action>(packed % 256);
}
constexpr Step::Into into_of(std::int64_t packed) { return static_cast<Step::Into>(packed / 256); }

class FlightRecorder {
 public:
  static constexpr std::size_t remembered = 64;  ///< calls

  explicit FlightRecorder(int ranks) : heard_(index(ranks)) {}

  void called(const CallHeader& header, Seconds now);
  /// `now`: nothing if the wait ended at once and did not look at the clock. `name` is the whole
  /// name; a header has only its beginning.
  void finished(std::uint64_t sequence, std::optional<Seconds> now, std::string_view name);
  /// A step of the call under way has ended.
  void stepped(const Step& step) {
    if (trace::here.recorder) trace_step(step);
  }
  /// `peer` has said that it is in this call.
  void heard(int peer, const CallHeader& header) { heard_[index(peer)] = header; }

  /// "this rank last finished #16 'bucket 1'; rank 2 was last heard from in #15 'bucket 0'"
  std::string last_seen(int peer) const;
  /// A line per remembered call, the oldest first.
  std::string text(Seconds now) const;

 private:
  struct Entry {
    CallHeader header{};
    Seconds called{0};
    std::optional<Seconds> finished{};
    bool done = false;
  };
  std::int64_t begun() const;
  void trace_step(const Step& step);
  void trace_call(std::uint64_t sequence, std::string_view name);

  const Entry& entry(std::uint64_t sequence) const { return entries_[sequence % remembered]; }
  Entry& entry(std::uint64_t sequence) { return entries_[sequence % remembered]; }

  std::array<Entry, remembered> entries_{};
  std::uint64_t next_ = 0;                        // the number of calls so far
  std::uint64_t done_ = 0;                        // of these, the first so many have ended
  std::vector<std::optional<CallHeader>> heard_;  // from each rank, the last
  // For a trace: when the last call ended and the last step, in nanoseconds; how many steps of the
  // call under way have ended.
  std::int64_t call_ended_ = 0, step_ended_ = 0, steps_ = 0;
};

}  // namespace lockstep::dist
