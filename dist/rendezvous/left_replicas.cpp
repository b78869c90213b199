#include "lockstep/dist/rendezvous/left_replicas.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <vector>

#include "lockstep/dist/rendezvous/ranks.h"
#include "lockstep/dist/rendezvous/surroundings/inherited.h"
#include "lockstep/dist/rendezvous/surroundings/nearest.h"

namespace lockstep::dist {
namespace {

std::string name_of(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

void LeftReplicas::add(std::uint64_t model, int rank, std::uint64_t fingerprint, int replicas) {
  const std::lock_guard lock(mutex_);
  auto& fingerprints = models_[model];
  fingerprints[rank] = fingerprint;
  const auto alike = [&](const auto& other) { return other.second == fingerprint; };
  if (fingerprint > not_compared && fingerprints.size() == index(replicas) &&
      std::ranges::all_of(fingerprints, alike))
    models_.erase(model);
}

std::size_t LeftReplicas::models() const {
  const std::lock_guard lock(mutex_);
  return models_.size();
}

std::string LeftReplicas::difference() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [model, fingerprints] : models_) {
    std::map<std::uint64_t, std::vector<int>> groups;
    for (const auto& [rank, fingerprint] : fingerprints)
      if (fingerprint != not_compared) groups[fingerprint].push_back(rank);
    if (groups.size() == 1 && groups.contains(not_ended) && groups.at(not_ended).size() > 1)
      return fmt::format(
          "{} did not end their DistributedDataParallel: nobody knows whether the replicas are "
          "equal (did they call std::exit, or never delete it?)",
          name_of(groups.at(not_ended)));
    if (groups.size() < 2) continue;
    if (const auto silent = groups.find(not_ended); silent != groups.end())
      return fmt::format(
          "{} did not end the DistributedDataParallel that other ranks have ended: nobody knows "
          "whether the replicas are equal (did it call std::exit, or never delete it?)",
          name_of(silent->second));
    const auto most =
        std::ranges::max_element(groups, {}, [](const auto& group) { return group.second.size(); });
    constexpr std::string_view rest =
        "parameters, or what optimizers keep, differ (DistributedDataParallel::check_replicas() "
        "says which; if they are meant to, end it before)";
    std::vector<int> others;
    for (const auto& [fingerprint, ranks] : groups)
      if (fingerprint != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
    std::ranges::sort(others);
    if (most->second.size() > others.size())
      return fmt::format("{} ended with another replica than {}: {}", name_of(others),
                         name_of(most->second), rest);
    std::vector<std::string> all;  // nobody has most ranks on its side
    for (const auto& [rank, fingerprint] : fingerprints)
      if (fingerprint != not_compared && groups.at(fingerprint).front() == rank)
        all.push_back(name_of(groups.at(fingerprint)));
    return fmt::format("{} ended with different replicas: {}", fmt::join(all, " and "), rest);
  }
  return "";
}

void leave_replica(const ThreadRank& thread, std::uint64_t model, std::uint64_t fingerprint,
                   int replicas) noexcept {
  try {
    if (thread.left) return thread.left->add(model, thread.rank, fingerprint, replicas);
    const std::optional<int> pipe = launcher_pipe();
    if (!pipe) return;
    const std::string line = write_replica({model, fingerprint});
    // Shorter than PIPE_BUF, so it is written whole. If it cannot be, nobody could be told.
    [[maybe_unused]] const auto written = ::write(*pipe, line.data(), line.size());
  } catch (...) {  // out of memory: the comparison is one rank short
  }
}

namespace {

struct KnownPipe {
  int descriptor;
  dev_t device;
  ino_t inode;
};

std::optional<KnownPipe> pipe_at(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISFIFO(status.st_mode)) return std::nullopt;
  return KnownPipe{descriptor, status.st_dev, status.st_ino};
}

std::optional<KnownPipe> pipe_of_environment() {
  const Getenv get = nearest_launcher([](const char* name) { return std::getenv(name); });
  const std::optional<int> number = inherited(get, "LOCKSTEP_ERROR_FD");
  return number ? pipe_at(*number) : std::nullopt;
}

std::mutex pipe_mutex;
std::optional<std::optional<KnownPipe>> remembered_pipe;  // that there is none, too

}  // namespace

void remember_launcher_pipe() {
  const std::lock_guard lock(pipe_mutex);
  remembered_pipe = pipe_of_environment();
}

std::optional<int> launcher_pipe() {
  const std::lock_guard lock(pipe_mutex);
  const std::optional<KnownPipe> pipe = remembered_pipe ? *remembered_pipe : pipe_of_environment();
  const std::optional<KnownPipe> now = pipe ? pipe_at(pipe->descriptor) : std::nullopt;
  if (!now || now->device != pipe->device || now->inode != pipe->inode) return std::nullopt;
  return pipe->descriptor;
}

namespace {

constexpr std::string_view world_begins = "world begins ", world_works = "world works",
                           world_ends = "world ends";

// Whether a line fits into the pipe: its reader may be stopped, and a pipe holds little.
bool takes_more(int pipe) {
  int unread = 0;
  return ::ioctl(pipe, FIONREAD, &unread) == 0 && unread < 2048;
}

}  // namespace

void tell_world(const WorldRecord& record) noexcept {
  try {
    const std::optional<int> pipe = launcher_pipe();
    if (!pipe || (record.kind == WorldRecord::Kind::works && !takes_more(*pipe))) return;
    const std::string line =
        record.kind == WorldRecord::Kind::begins
            ? fmt::format("{}{}\n", world_begins, record.timeout)
            : fmt::format("{}\n",
                          record.kind == WorldRecord::Kind::ends ? world_ends : world_works);
    [[maybe_unused]] const auto written = ::write(*pipe, line.data(), line.size());
  } catch (...) {  // out of memory: the launcher knows less of this rank
  }
}

std::optional<WorldRecord> read_world(std::string_view line) {
  if (line == world_works) return WorldRecord{WorldRecord::Kind::works};
  if (line == world_ends) return WorldRecord{WorldRecord::Kind::ends};
  if (!line.starts_with(world_begins)) return std::nullopt;
  const auto timeout = parse_number<double>(line.substr(world_begins.size()));
  if (!timeout || !(*timeout >= 0)) return std::nullopt;
  return WorldRecord{WorldRecord::Kind::begins, *timeout};
}

std::string write_replica(const ReplicaRecord& record) {
  return fmt::format("replica {:016x} {:016x}\n", record.model, record.fingerprint);
}

std::optional<ReplicaRecord> read_replica(std::string_view line) {
  constexpr std::string_view word = "replica ";
  if (!line.starts_with(word) || line.size() != word.size() + 33) return std::nullopt;
  line.remove_prefix(word.size());
  ReplicaRecord record{};
  const auto read = [](std::string_view text, std::uint64_t& number) {
    const char* const end = text.data() + text.size();
    return std::from_chars(text.data(), end, number, 16).ptr == end;
  };
  if (line[16] != ' ' || !read(line.substr(0, 16), record.model) ||
      !read(line.substr(17), record.fingerprint))
    return std::nullopt;
  return record;
}

}  // namespace lockstep::dist
