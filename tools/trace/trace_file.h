#pragma once
/// Reads the files that dist::Trace has written.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::traces {

/// A slice or an instant; times are microseconds by rank 0's clock.
struct Event {
  double begin = 0, end = 0;
  std::string category;  ///< forward, backward, ..., as the kinds of core/trace/recorder.h
  std::string name;
  int track = 1;  ///< 1: the thread; 2, 3, ...: communicators; 1000, ...: streams
  nlohmann::json arguments;

  double duration() const { return end - begin; }
};

/// A number that the program has noted, such as a loss.
struct Value {
  double time = 0;  ///< us by rank 0's clock
  std::string name;
  std::int64_t step = 0;  ///< by the program's own count
  double number = 0;      ///< NaN where it was not finite
};

/// What one rank did: tracks one after another, by begin; a slice comes before those within it.
struct RankTrace {
  int rank = 0;
  std::vector<Event> events;
  std::vector<Value> values = {};  ///< by time
  double clock_uncertainty = 0;    ///< us
  std::int64_t dropped = 0;        ///< events after the last one here
};

/// By rank. Throws DataError if a file is missing, damaged, or of another run than the others.
std::vector<RankTrace> read_traces(const std::string& directory);

}  // namespace lockstep::traces
