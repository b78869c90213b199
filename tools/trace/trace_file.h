#pragma once
/// Reads the files that dist::Trace has written.

#include <functional>
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
  std::int64_t dropped = 0;        ///< events that were not kept
  int world = 1;                   ///< how many ranks the run had
};

/// Of the newest run in the folder, by rank: of each rank that has left a file. Throws DataError if
/// none has, or if a file is damaged.
std::vector<RankTrace> read_traces(const std::string& directory);

/// The ranks of the run that have left no file, "rank 1" or "ranks 1, 3"; "" if all have.
std::string missing_ranks(const std::vector<RankTrace>& traces);

/// Calls `use` with each event of rank's file, in order, metadata among them. Errors as above.
void for_each_event(const std::string& directory, int rank,
                    const std::function<void(nlohmann::json&)>& use);

/// Throws UsageError if `path` is, or would be, a rank's file of this folder.
void check_is_no_trace(const std::string& directory, const std::string& path);

}  // namespace lockstep::traces
