// The first requests of each line, for pictures.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/tools/counts/text.h"

namespace lockstep::counts {
namespace {

using nlohmann::ordered_json;

using Places = std::map<const void*, std::string>;

/// "FILE:LINE" of all traced requests, from the root of the sources if they lie there.
Places places_of(const std::vector<Counted>& all) {
  Places places;
  for (const Counted& counted : all)
    for (const Launch& launch : counted.launches)
      for (const auto& traced : launch.traced) places[traced.caller];
  std::vector<const void*> callers;
  for (const auto& [caller, place] : places) callers.push_back(caller);
  const std::string root = std::filesystem::weakly_canonical(LOCKSTEP_SOURCE_DIR).string() + "/";
  const std::vector<std::string> lines = simt::counters::places_of(callers);
  for (std::size_t i = 0; i < callers.size(); ++i)
    places[callers[i]] = lines[i].starts_with(root) ? lines[i].substr(root.size()) : lines[i];
  return places;
}

ordered_json entry_of(const simt::counters::Traced& traced, const Places& places) {
  ordered_json lanes = ordered_json::array();
  for (const std::int64_t offset : traced.offsets)
    lanes.push_back(offset < 0 ? ordered_json() : ordered_json(offset));
  return {{"at", places.at(traced.caller)}, {"kind", simt::counters::name_of(traced.what)},
          {"bytes", traced.bytes},          {"warp", traced.warp},
          {"memory", traced.memory},        {"lanes", std::move(lanes)}};
}

}  // namespace

ordered_json trace_of(const std::vector<Counted>& all) {
  const Places places = places_of(all);
  ordered_json result = to_json(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < all[i].launches.size(); ++j) {
      const Launch& launch = all[i].launches[j];
      ordered_json lanes = ordered_json::array(), chunks = ordered_json::array();
      for (const auto& traced : launch.traced) lanes.push_back(entry_of(traced, places));
      for (const auto& chunk : launch.first_chunks) chunks.push_back({chunk.from, chunk.to});
      ordered_json& entry = result[i]["launches"][j];
      entry["requests"] = std::move(lanes);
      entry["chunks"] = std::move(chunks);
    }
  return result;
}

}  // namespace lockstep::counts
