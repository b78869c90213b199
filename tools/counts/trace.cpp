// The first requests of each line, for pictures.
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/tools/counts/text.h"

namespace lockstep::counts {
namespace {

using nlohmann::ordered_json;

/// "FILE:LINE", from the root of the sources if it lies there. Each is looked up once.
std::string place_of(const void* caller) {
  static std::map<const void*, std::string> known;
  std::string& place = known[caller];
  if (place.empty()) {
    place = simt::counters::place_of(caller);
    const std::string root = std::filesystem::weakly_canonical(LOCKSTEP_SOURCE_DIR).string() + "/";
    if (place.starts_with(root)) place.erase(0, root.size());
  }
  return place;
}

ordered_json entry_of(const simt::counters::Traced& traced) {
  ordered_json lanes = ordered_json::array();
  for (const std::int64_t offset : traced.offsets)
    lanes.push_back(offset < 0 ? ordered_json() : ordered_json(offset));
  return {{"at", place_of(traced.caller)}, {"kind", simt::counters::name_of(traced.what)},
          {"bytes", traced.bytes},         {"warp", traced.warp},
          {"memory", traced.memory},       {"lanes", std::move(lanes)}};
}

}  // namespace

ordered_json trace_of(const std::vector<Counted>& all) {
  ordered_json result = to_json(all);
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = 0; j < all[i].launches.size(); ++j) {
      const Launch& launch = all[i].launches[j];
      ordered_json lanes = ordered_json::array(), chunks = ordered_json::array();
      for (const auto& traced : launch.traced) lanes.push_back(entry_of(traced));
      for (const auto& chunk : launch.first_chunks) chunks.push_back({chunk.from, chunk.to});
      ordered_json& entry = result[i]["launches"][j];
      entry["requests"] = std::move(lanes);
      entry["chunks"] = std::move(chunks);
    }
  return result;
}

}  // namespace lockstep::counts
