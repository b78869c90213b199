#include "lockstep/tools/trace/trace_file.h"

#include <cmath>
#include <fstream>

#include "lockstep/core/error.h"

namespace lockstep::traces {
namespace {

using nlohmann::json;

json parse(const std::string& path) {
  std::ifstream file(path);
  check<DataError>(file.good(),
                   "[trace] cannot read '{}': is it a folder that a Trace has written?", path);
  try {
    return json::parse(file);
  } catch (const json::exception& error) {
    fail<DataError>("[trace] '{}' is damaged: {}", path, error.what());
  }
}

RankTrace convert(json& file) {
  const json& about = file.at("otherData");
  RankTrace trace{.rank = about.at("rank"),
                  .events = {},
                  .clock_uncertainty = about.at("clock_uncertainty_us"),
                  .dropped = about.at("dropped")};
  for (json& entry : file.at("traceEvents")) {
    const std::string kind = entry.at("ph");
    if (kind == "M") continue;
    const double begin = entry.at("ts");
    if (kind == "C") {
      const json& number = entry.at("args").at("value");
      trace.values.push_back({.time = begin,
                              .name = entry.at("name"),
                              .step = entry.at("step"),
                              .number = number.is_null() ? std::nan("") : number.get<double>()});
      continue;
    }
    trace.events.push_back(
        {.begin = begin,
         .end = kind == "X" ? begin + entry.at("dur").get<double>() : begin,
         .category = entry.at("cat"),
         .name = entry.at("name"),
         .track = entry.at("tid"),
         .arguments = entry.contains("args") ? std::move(entry.at("args")) : json::object()});
  }
  return trace;
}

}  // namespace

std::vector<RankTrace> read_traces(const std::string& directory) {
  std::vector<RankTrace> traces;
  std::string run;
  std::size_t world = 1;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const std::string path = fmt::format("{}/rank-{}.json", directory, rank);
    json file = parse(path);
    try {
      const json& about = file.at("otherData");
      const std::string its_run = about.at("run");
      if (rank == 0) {
        run = its_run;
        world = about.at("world");
      }
      check<DataError>(its_run == run && about.at("rank") == rank,
                       "[trace] '{}' is of another run than rank 0's file", path);
      traces.push_back(convert(file));
    } catch (const json::exception& error) {
      fail<DataError>("[trace] '{}' is no trace of Lockstep: {}", path, error.what());
    }
  }
  return traces;
}

}  // namespace lockstep::traces
