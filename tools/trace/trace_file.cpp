#include "lockstep/tools/trace/trace_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>

#include "lockstep/core/error.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::traces {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string path_of(const std::string& directory, int rank) {
  return fmt::format("{}/rank-{}.json", directory, rank);
}

/// N of "rank-N.json".
std::optional<int> rank_of(const std::string& name) {
  if (!name.starts_with("rank-") || !name.ends_with(".json")) return {};
  const auto rank = dist::parse_number<int>(std::string_view(name).substr(5, name.size() - 10));
  return rank >= 0 ? rank : std::nullopt;
}

std::set<int> ranks_in(const std::string& directory) {
  std::set<int> ranks;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    if (const auto rank = rank_of(entry->path().filename().string())) ranks.insert(*rank);
  return ranks;
}

/// What is wrong in a file, whose name is not known where it is found.
using Damage = std::domain_error;

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();

/// The whole number `owner[key]`, within bounds.
std::int64_t integer(const json& owner, const char* key, std::int64_t least, std::int64_t most) {
  const json& number = owner.at(key);
  const double rounded = number.get<double>();
  check<Damage>(number.is_number_integer() && rounded >= static_cast<double>(least) &&
                    rounded <= static_cast<double>(most),
                "'{}' must be an integer in {}..{}, got {}", key, least, most, number.dump());
  return number.get<std::int64_t>();
}

/// Longer traces have no nanoseconds, and a page cannot tell their times apart.
double microseconds(const json& owner, const char* key, double least) {
  constexpr double most = 1e13;  // 115 days
  const double time = owner.at(key).get<double>();
  check<Damage>(time >= least && time <= most, "'{}' must be in {:g}..{:g} us, got {:g}", key,
                least, most, time);
  return time;
}

/// What the figures and the page take from an event's arguments.
void check_arguments(const Event& event) {
  const std::string& kind = event.category;
  const json& a = event.arguments;
  const auto integers = [&](std::initializer_list<const char*> keys) {
    for (const char* key : keys) integer(a, key, -1, largest);
  };
  if (kind == "load") integers({"rows", "position"});
  if (kind == "idle") integer(a, "rank", -1, std::numeric_limits<int>::max());
  if (kind == "ready") integers({"bucket", "pending"});
  if (kind == "launched") integers({"bucket", "bytes"});
  if (kind == "collective") {
    integers({"sequence", "elements", "bytes"});
    for (const char* key : {"operation", "algorithm"}) (void)a.at(key).get<std::string>();
  }
  if (kind == "step") {
    integers({"number", "to", "from"});
    for (const char* key : {"send", "receive"}) (void)a.at(key).get<std::array<std::int64_t, 2>>();
    for (const char* key : {"action", "into"}) (void)a.at(key).get<std::string>();
  }
}

void add_event(RankTrace& trace, json& entry) {
  constexpr double no_time = -1e13;
  const std::string kind = entry.at("ph");
  if (kind == "M") return;
  const double begin = microseconds(entry, "ts", no_time);
  if (kind == "C") {
    const json& number = entry.at("args").at("value");
    trace.values.push_back({.time = begin,
                            .name = entry.at("name"),
                            .step = integer(entry, "step", -largest, largest),
                            .number = number.is_null() ? std::nan("") : number.get<double>()});
    return;
  }
  trace.events.push_back(
      {.begin = begin,
       .end = kind == "X" ? begin + microseconds(entry, "dur", 0) : begin,
       .category = entry.at("cat"),
       .name = entry.at("name"),
       .track = static_cast<int>(integer(entry, "tid", 1, 65535)),
       .arguments = entry.contains("args") ? std::move(entry.at("args")) : json::object()});
  check_arguments(trace.events.back());
}

/// Runs `task`; what it finds wrong in the file becomes a line with the file's name.
template <class Task>
void naming(const std::string& path, const Task& task) {
  try {
    task();
  } catch (const json::parse_error& error) {
    fail<DataError>("[trace] '{}' is damaged: {}", path, error.what());
  } catch (const json::exception& error) {
    fail<DataError>("[trace] '{}' is no trace of Lockstep: {}", path, error.what());
  } catch (const Damage& error) {
    fail<DataError>("[trace] '{}' is no trace of Lockstep: {}", path, error.what());
  }
}

/// The head of a file. `use` gets its events, one at a time: as one tree they would take gigabytes.
json read(const std::string& path, const std::function<void(json&)>& use) {
  const std::string problem = why_unreadable(path);
  check<DataError>(problem.empty(), "[trace] cannot read '{}': {}", path, problem);
  std::ifstream file(path);
  std::string key;  // at the top
  return json::parse(file, [&](int depth, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && depth == 1) key = parsed.get<std::string>();
    if (depth != 2 || event != json::parse_event_t::object_end || key != "traceEvents") return true;
    use(parsed);
    return false;
  });
}

struct File {
  RankTrace trace;
  std::string run;   ///< the same on all ranks
  double began = 0;  ///< seconds since 1970, by this rank's machine
};

File read_rank(const std::string& directory, int rank) {
  const std::string path = path_of(directory, rank);
  File file{};
  naming(path, [&] {
    const json all = read(path, [&](json& entry) { add_event(file.trace, entry); });
    constexpr int most = 1'000'000;
    const json& about = all.at("otherData");
    (void)all.at("traceEvents");
    file.run = about.at("run");
    file.began = about.at("began");
    file.trace.rank = static_cast<int>(integer(about, "rank", rank, rank));
    file.trace.world = static_cast<int>(integer(about, "world", rank + 1, most));
    file.trace.dropped = integer(about, "dropped", 0, largest);
    file.trace.clock_uncertainty = about.at("clock_uncertainty_us");
  });
  return file;
}

}  // namespace

std::vector<RankTrace> read_traces(const std::string& directory) {
  const std::set<int> ranks = ranks_in(directory);
  check<DataError>(!ranks.empty(),
                   "[trace] cannot read '{}': is it a folder that a Trace has written?",
                   path_of(directory, 0));
  std::vector<RankTrace> traces;
  std::string run;
  double newest = -std::numeric_limits<double>::infinity();
  for (const int rank : ranks) {
    File file = read_rank(directory, rank);
    if (file.run != run && file.began <= newest) continue;
    if (file.run != run) traces.clear();
    run = file.run;
    newest = std::max(newest, file.began);
    traces.push_back(std::move(file.trace));
  }
  return traces;
}

std::string missing_ranks(const std::vector<RankTrace>& traces) {
  std::vector<int> missing;
  for (int rank = 0; !traces.empty() && rank < traces[0].world; ++rank)
    if (!std::ranges::binary_search(traces, rank, {}, &RankTrace::rank)) missing.push_back(rank);
  if (missing.empty()) return "";
  return fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
}

void for_each_event(const std::string& directory, int rank, const std::function<void(json&)>& use) {
  const std::string path = path_of(directory, rank);
  naming(path, [&] { (void)read(path, use); });
}

void check_is_no_trace(const std::string& directory, const std::string& path) {
  std::error_code error;
  bool is_trace = false;
  for (const int rank : ranks_in(directory))
    is_trace = is_trace || fs::equivalent(path_of(directory, rank), path, error);
  const fs::path folder = fs::path(path).parent_path();
  is_trace = is_trace || (rank_of(fs::path(path).filename().string()) &&
                          fs::equivalent(folder.empty() ? "." : folder, directory, error));
  check<UsageError>(!is_trace, "'{}' is a trace of '{}': take another name", path, directory);
}

}  // namespace lockstep::traces
