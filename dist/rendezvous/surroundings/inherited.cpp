#include "lockstep/dist/rendezvous/surroundings/inherited.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/text/number.h"

namespace lockstep::dist {
namespace {

constexpr const char* identities_variable = "LOCKSTEP_DESCRIPTORS";
constexpr std::array<const char*, 3> descriptor_variables{"LOCKSTEP_TOKEN_FD", "LOCKSTEP_ERROR_FD",
                                                          "LOCKSTEP_SURVIVE_FD"};

/// Empty if it is closed.
std::string identity_of(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return "";
  return fmt::format("{}:{}:{}", descriptor, status.st_dev, status.st_ino);
}

std::optional<int> number_in(const Getenv& get, const char* name) {
  const char* text = get(name);
  return text ? parse_number<int>(text) : std::nullopt;
}

/// What the launcher left open under this number; nothing if it has not told.
std::optional<std::string> left_open(const Getenv& get, int descriptor) {
  const char* text = get(identities_variable);
  std::istringstream words = classic_stream(text ? text : "");
  for (std::string word; words >> word;)
    if (word.starts_with(fmt::format("{}:", descriptor))) return word;
  return std::nullopt;
}

}  // namespace

Descriptor moved_up(Descriptor low) {
  struct rlimit limit {};
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  const int from = known ? static_cast<int>(std::min<rlim_t>(limit.rlim_cur / 2, 512)) : 512;
  return Descriptor(
      checked(::fcntl(low.get(), F_DUPFD_CLOEXEC, from), "give a descriptor a high number"));
}

std::string identities_of(std::span<const int> descriptors) {
  std::vector<std::string> parts;
  for (const int descriptor : descriptors) parts.push_back(identity_of(descriptor));
  return fmt::format("{}", fmt::join(parts, " "));
}

std::optional<int> inherited(const Getenv& get, const char* name) {
  const std::optional<int> number = number_in(get, name);
  const auto expected = number ? left_open(get, *number) : std::nullopt;
  return !expected || *expected == identity_of(*number) ? number : std::nullopt;
}

void check_inherited(const Getenv& get) {
  std::vector<int> numbers;
  for (const char* name : descriptor_variables)
    if (const auto number = number_in(get, name)) numbers.push_back(*number);
  for (const char* name : descriptor_variables) {
    const std::optional<int> number = number_in(get, name);
    if (!number || inherited(get, name)) continue;
    fail<UsageError>(
        "[environment] {0}={1}: descriptor {1} is {2} here, not what lockstep-run has left open. "
        "What starts this program must leave descriptors {3} open (Python's subprocess: "
        "close_fds=False, or pass_fds=[{3}]). If this program is no rank, start it without RANK "
        "and WORLD_SIZE",
        name, *number, identity_of(*number).empty() ? "closed" : "another file",
        fmt::join(numbers, ", "));
  }
}

void keep_from_children(const Getenv& get) {
  for (const char* name : descriptor_variables)
    if (const auto number = inherited(get, name)) ::fcntl(*number, F_SETFD, FD_CLOEXEC);
}

}  // namespace lockstep::dist
