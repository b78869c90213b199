#include "lockstep/core/system/memory_limits.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Number = std::optional<std::uint64_t>;

// The number that stands alone in a file; nothing for "max".
Number number_in(const fs::path& file) {
  std::uint64_t value = 0;
  return std::ifstream(file) >> value ? Number(value) : std::nullopt;
}

// The number behind a word at the beginning of a line.
Number number_after(const fs::path& file, std::string_view word) {
  std::ifstream lines(file);
  std::string first, rest;
  while (lines >> first) {
    std::uint64_t value = 0;
    if (first == word) return lines >> value ? Number(value) : std::nullopt;
    std::getline(lines, rest);
  }
  return std::nullopt;
}

// The folder of this process's cgroup (v2), below that of all cgroups.
std::optional<fs::path> own_cgroup(const fs::path& root) {
  std::ifstream lines(root / "proc/self/cgroup");
  constexpr std::string_view unified = "0::/";
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(unified)) return fs::path(line.substr(unified.size()));
  return std::nullopt;
}

Number left_in(const fs::path& cgroup) {
  const Number most = number_in(cgroup / "memory.max"), now = number_in(cgroup / "memory.current");
  if (!most || !now) return std::nullopt;
  const fs::path statistics = cgroup / "memory.stat";
  const std::uint64_t file_pages = number_after(statistics, "active_file").value_or(0) +
                                   number_after(statistics, "inactive_file").value_or(0);
  const std::uint64_t used = *now - std::min(*now, file_pages);
  return *most - std::min(*most, used);
}

}  // namespace

std::optional<std::uint64_t> available_memory(const fs::path& root) {
  Number least = number_after(root / "proc/meminfo", "MemAvailable:");
  if (least) *least *= 1024;
  const auto limit = [&](Number bytes) {
    if (bytes) least = std::min(least.value_or(*bytes), *bytes);
  };
  const fs::path groups = root / "sys/fs/cgroup";
  if (std::optional<fs::path> group = own_cgroup(root)) {
    limit(left_in(groups));
    for (; !group->empty(); group = group->parent_path()) limit(left_in(groups / *group));
  }
  return least;
}

std::optional<std::uint64_t> out_of_memory_kills(const fs::path& root) {
  const std::optional<fs::path> group = own_cgroup(root);
  if (!group) return std::nullopt;
  return number_after(root / "sys/fs/cgroup" / *group / "memory.events", "oom_kill");
}

}  // namespace lockstep
