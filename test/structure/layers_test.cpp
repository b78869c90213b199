// Rooms are layers: the sources of a room include only rooms below it. Here is the order.

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "structure/tree.h"

using namespace lockstep::test;

namespace {

/// A folder, and those whose headers its sources may include besides its own.
struct Room {
  std::string folder;
  std::vector<std::string> below;
};

/// Each list names the rooms directly below; what lies below these is allowed, too.
const std::vector<Room>& rooms() {
  static const std::vector<Room> all = {
      {"simt", {}},
      {"version.h", {}},  // CMake writes it
      {"core", {"version.h"}},
      {"data", {"core"}},
      {"kernels", {"core"}},
      {"autograd", {"kernels"}},
      {"dist/rendezvous", {"core"}},
      {"dist/transport", {"dist/rendezvous"}},
      {"dist/simulated", {"dist/transport"}},
      {"dist/collectives", {"dist/transport", "autograd"}},
      {"dist/gpu", {"dist/collectives"}},
      {"dist/mpi", {"dist/collectives"}},
      {"dist/world", {"dist/gpu", "dist/mpi"}},
      {"dist/observe", {"dist/world"}},
      {"dist/ddp", {"dist/world"}},
      {"dist/audit", {"dist/ddp"}},
      {"dist/doctor", {"dist/ddp"}},
      {"launch", {"dist/rendezvous"}},
      {"nn", {"dist/ddp", "data"}},
      {"lockstep.h", {"nn", "data", "dist/audit", "dist/observe"}},
  };
  return all;
}

/// The room of a path, or null for programs and tests, which stand above all rooms.
const Room* room_of(std::string_view path) {
  for (const Room& room : rooms())
    if (path == room.folder || path.starts_with(room.folder + "/")) return &room;
  return nullptr;
}

bool may_include(const Room& room, const Room& other) {
  return &room == &other || std::ranges::any_of(room.below, [&](const std::string& folder) {
    return may_include(*room_of(folder), other);
  });
}

/// "core/tensor.h" of `#include "lockstep/core/tensor.h"`, in quotes or brackets; else empty.
std::string_view included(std::string_view line) {
  constexpr std::string_view include = "#include ", prefix = "lockstep/";
  if (!line.starts_with(include) || line.size() <= include.size()) return {};
  line.remove_prefix(include.size() + 1);
  if (!line.starts_with(prefix)) return {};
  line.remove_prefix(prefix.size());
  return line.substr(0, line.find_first_of("\">"));
}

/// What is wrong with an include of a file, or "".
std::string objection(const std::string& file, std::string_view header) {
  const Room* const room = room_of(file);
  if (!room) return "";
  const Room* const other = room_of(header);
  if (other && may_include(*room, *other)) return "";
  return file + " includes " + std::string(header);
}

}  // namespace

TEST_CASE("layers: the check itself") {
  CHECK(objection("dist/ddp/reducer.h", "dist/world/world.h") == "");
  CHECK(objection("dist/ddp/reducer.h", "core/tensor.h") == "");
  CHECK(objection("bench/step.cpp", "nn/layers.h") == "");
  CHECK(objection("core/tensor.h", "kernels/reduce.h") != "");
  CHECK(objection("dist/gpu/ipc_ring.h", "dist/mpi/mpi.h") != "");
  CHECK(objection("launch/job.cpp", "dist/transport/transport.h") != "");
  CHECK(objection("nn/layers.h", "tools/cli.h") != "");
  CHECK(included("#include \"lockstep/core/tensor.h\"") == "core/tensor.h");
  CHECK(included("#include <lockstep/lockstep.h>") == "lockstep.h");
  CHECK(included("#include <vector>") == "");
}

TEST_CASE("layers: no source includes a room above its own") {
  int includes = 0;
  for (const std::string& file : files_of_tree()) {
    if (!is_source(file)) continue;
    for (const std::string& line : lines_of_file(file)) {
      const std::string_view header = included(line);
      if (header.empty()) continue;
      ++includes;
      CHECK(objection(file, header) == "");
    }
  }
  CHECK(includes > 500);  // or the check reads nothing
}

TEST_CASE("layers: every folder of dist/ is a room") {
  for (const std::string& file : files_of_tree())
    if (file.starts_with("dist/") && is_source(file)) {
      CAPTURE(file);
      CHECK(room_of(file) != nullptr);
    }
}
