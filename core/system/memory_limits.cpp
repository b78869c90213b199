#include "lockstep/core/system/memory_limits.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <locale>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Number = std::optional<std::uint64_t>;

// The number that stands alone in a file; nothing for "max".
Number number_in(const fs::path& file) {
  std::ifstream number(file);
  number.imbue(std::locale::classic());
  std::uint64_t value = 0;
  return number >> value ? Number(value) : std::nullopt;
}

// The number behind a word at the beginning of a line.
Number number_after(const fs::path& file, std::string_view word) {
  std::ifstream lines(file);
  lines.imbue(std::locale::classic());
  std::string first, rest;
  while (lines >> first) {
    std::uint64_t value = 0;
    if (first == word) return lines >> value ? Number(value) : std::nullopt;
    std::getline(lines, rest);
  }
  return std::nullopt;
}

// Where a version of cgroups says what about memory.
struct Version {
  std::string_view controller;  // in /proc/self/cgroup: "4:memory:/job"; v2 has none: "0::/job"
  const char *tree, *most, *now, *active_file, *inactive_file, *kills;
};
constexpr Version versions[] = {
    {"memory", "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_active_file", "total_inactive_file", "memory.oom_control"},
    {"", "sys/fs/cgroup", "memory.max", "memory.current", "active_file", "inactive_file",
     "memory.events"},
};

// Whether one of the names in "cpu,memory" is this one.
bool lists(std::string_view names, std::string_view name) {
  while (names != name) {
    const std::size_t comma = names.find(',');
    if (comma == names.npos) return false;
    if (names.substr(0, comma) == name) return true;
    names.remove_prefix(comma + 1);
  }
  return true;
}

// The folder of this process's cgroup, below that of all cgroups.
std::optional<fs::path> own_cgroup(const fs::path& root, const Version& version) {
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {  // number:controllers:/path
    const std::size_t first = line.find(':'), second = line.find(":/", first + 1);
    if (first == line.npos || second == line.npos) continue;
    if (lists(std::string_view(line).substr(first + 1, second - first - 1), version.controller))
      return fs::path(line.substr(second + 2));
  }
  return std::nullopt;
}

Number left_in(const fs::path& cgroup, const Version& version) {
  const Number most = number_in(cgroup / version.most), now = number_in(cgroup / version.now);
  if (!most || !now) return std::nullopt;
  const fs::path statistics = cgroup / "memory.stat";
  const std::uint64_t file_pages = number_after(statistics, version.active_file).value_or(0) +
                                   number_after(statistics, version.inactive_file).value_or(0);
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
  for (const Version& version : versions) {
    const fs::path groups = root / version.tree;
    std::optional<fs::path> group = own_cgroup(root, version);
    if (!group) continue;
    limit(left_in(groups, version));
    for (; !group->empty(); group = group->parent_path()) limit(left_in(groups / *group, version));
  }
  return least;
}

std::optional<std::uint64_t> memory_shortage(std::uint64_t bytes) {
  constexpr std::uint64_t step = 4 << 20;
  static std::atomic<std::uint64_t> unasked = 0;
  if (bytes < step && unasked.fetch_add(bytes) + bytes < step) return std::nullopt;
  unasked = 0;
  const Number available = available_memory();
  return available && bytes > *available ? available : std::nullopt;
}

std::string describe_available_memory() {
  const Number available = available_memory();
  std::string text = available ? fmt::format("{} bytes of memory are free", *available)
                               : "nobody knows how much memory is free";
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    text += fmt::format(", and this process may have {} bytes of addresses (ulimit -v)",
                        limit.rlim_cur);
  return text;
}

std::optional<std::uint64_t> out_of_memory_kills(const fs::path& root) {
  for (const Version& version : versions)
    if (const std::optional<fs::path> group = own_cgroup(root, version))
      if (const Number kills =
              number_after(root / version.tree / *group / version.kills, "oom_kill"))
        return kills;
  return std::nullopt;
}

}  // namespace lockstep
