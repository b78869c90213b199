// The checks of one process.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/system/atomic_file.h"
#include "lockstep/dist/doctor/doctor.h"
#include "lockstep/dist/rendezvous/endpoint.h"

namespace lockstep::doctor {
namespace {

std::string gib(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return bytes < (1U << 30U) ? fmt::format("{:.1f} MiB", value / (1U << 20U))
                             : fmt::format("{:.1f} GiB", value / (1U << 30U));
}

/// Free bytes where `path` lies; nothing, and errno, if that cannot be known.
std::optional<std::uint64_t> free_bytes(const std::string& path) {
  struct statvfs about {};
  if (::statvfs(path.c_str(), &about) != 0) return {};
  return std::uint64_t{about.f_bavail} * about.f_frsize;
}

}  // namespace

std::string to_text(const Finding& finding) {
  std::string text =
      fmt::format("{:<8}{}: {}", finding.good ? "ok" : "PROBLEM", finding.check, finding.found);
  if (!finding.advice.empty()) text += "\n        " + finding.advice;
  return text;
}

Finding check_environment(const dist::Getenv& get) {
  Finding finding{.check = "environment", .found = {}, .advice = {}};
  try {
    const auto info = dist::read_environment(get);
    finding.found =
        info ? fmt::format("rank {} of {}, by {}{}", info->rank, info->size, info->launcher,
                           info->rendezvous.empty() ? "" : ", at " + info->rendezvous)
             : "no launcher has set anything: a world of 1";
  } catch (const Error& error) {
    finding.good = false;
    finding.found = error.what();
    finding.advice =
        "Every rank needs RANK (0, 1, ...), WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, and for "
        "several machines MASTER_ADDR and MASTER_PORT; lockstep-run and torchrun set them.";
  }
  return finding;
}

// Over TCP a rank has a connection to each other one, and a few files.
Finding check_descriptors(int ranks) {
  const auto needed = static_cast<std::uint64_t>(ranks) + 64;
  struct rlimit limit {};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Finding finding{
      .check = "descriptors",
      .good = limit.rlim_cur >= needed,
      .found = fmt::format("{} may be open, {} ranks need up to {}", limit.rlim_cur, ranks, needed),
      .advice = {}};
  if (!finding.good) finding.advice = fmt::format("ulimit -n {}", needed);
  return finding;
}

Finding check_shared_memory(int ranks, std::uint64_t bytes, const std::string& path) {
  // Gradients, and a stream of 64 KiB from each rank to each other one.
  const auto count = static_cast<std::uint64_t>(ranks);
  const std::uint64_t needed = count * bytes + count * count * (64U << 10U);
  Finding finding{.check = "shared memory", .found = {}, .advice = {}};
  const auto free = free_bytes(path);
  if (!free) {
    finding.good = false;
    finding.found = fmt::format("cannot read {}: {}", path, std::strerror(errno));
    finding.advice = "Mount a tmpfs there, or train with --transport tcp.";
    return finding;
  }
  finding.good = *free >= needed;
  finding.found = fmt::format("{} free in {}, {} ranks with {} of gradients each need {}",
                              gib(*free), path, ranks, gib(bytes), gib(needed));
  if (!finding.good)
    finding.advice = fmt::format(
        "Make it larger (mount -o remount,size={}M {}; docker run --shm-size={}m), or train with "
        "--transport tcp.",
        2 * (needed >> 20U) + 1, path, 2 * (needed >> 20U) + 1);
  return finding;
}

Finding check_folder(const std::string& folder, std::uint64_t bytes) {
  Finding finding{.check = "folder", .found = {}, .advice = {}};
  const std::string path = fmt::format("{}/lockstep-doctor-{}", folder, ::getpid());
  try {
    AtomicFile file(path);
    file.write("x", 1);
    file.commit();
    ::unlink(path.c_str());
  } catch (const Error& error) {
    finding.good = false;
    finding.found = fmt::format("'{}' cannot be written: {}", folder, error.what());
    finding.advice = "Give --folder a folder in which this user may write: checkpoints need one.";
    return finding;
  }
  const std::uint64_t free = free_bytes(folder).value_or(0);
  finding.good = free >= bytes;
  finding.found = fmt::format("'{}' can be written, {} free", folder, gib(free));
  if (!finding.good)
    finding.advice = fmt::format(
        "A checkpoint of {} does not find room: free some, or give "
        "--folder another one.",
        gib(bytes));
  return finding;
}

namespace {

// Whether a process listens on a Unix socket; nothing if the file is no socket.
std::optional<bool> somebody_listens(const std::string& path) {
  const dist::Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  struct stat about {};
  if (::stat(path.c_str(), &about) != 0 || !S_ISSOCK(about.st_mode)) return {};
  if (path.size() >= sizeof(address.sun_path)) return {};
  path.copy(address.sun_path, path.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
    return true;
  if (errno == ECONNREFUSED) return false;
  return {};
}

Finding check_socket(const std::string& path) {
  Finding finding{.check = "meeting place", .found = {}, .advice = {}};
  if (::access(path.c_str(), F_OK) != 0) {
    finding.found = fmt::format("unix:{} is free", path);
    return finding;
  }
  const std::optional<bool> listens = somebody_listens(path);
  if (listens == false && ::access(path.c_str(), W_OK) == 0) {
    finding.found =
        fmt::format("unix:{} was left by a process that is gone; rank 0 will replace it", path);
    return finding;
  }
  finding.good = false;
  finding.found = fmt::format("unix:{} {}", path,
                              listens == true    ? "is in use: another job's rank 0 listens there"
                              : listens == false ? "was left by another user's process"
                                                 : "is no socket");
  finding.advice = listens == true ? "End that job, or give this one another path."
                                   : fmt::format("Remove it: rm '{}'", path);
  return finding;
}

}  // namespace

Finding check_meeting_place(const std::string& address) {
  Finding finding{.check = "meeting place", .found = {}, .advice = {}};
  try {
    const dist::Endpoint where = dist::Endpoint::parse(address);
    if (where.is_unix()) return check_socket(where.path);
    const dist::Descriptor listener = dist::listen_on(where, false);
    finding.found = fmt::format("{} is free", address);
  } catch (const Error& error) {
    finding.good = false;
    finding.found = error.what();
    finding.advice =
        "Another process has this port, or the address is not this machine's: choose another "
        "MASTER_PORT (ss -ltnp shows who listens), or start rank 0 where MASTER_ADDR is.";
  }
  return finding;
}

Finding explain_join(const std::exception& error) {
  Finding finding{.check = "joining", .good = false, .found = error.what(), .advice = {}};
  const auto says = [&](const char* text) { return finding.found.find(text) != std::string::npos; };
  if (says("cannot listen"))
    finding.advice =
        "Another process listens there (ss -ltnp shows it): if it is a rank 0 of this job, give "
        "each process its own RANK; if not, choose another MASTER_PORT.";
  else if (says("twice") || says("already") || says("two processes"))
    finding.advice = "Two processes have the same RANK: give each its own, 0 to WORLD_SIZE - 1.";
  else if (says("timed out") || says("missing") || says("did not come"))
    finding.advice =
        "A rank has not come: is WORLD_SIZE the number of processes that were started, does each "
        "reach MASTER_ADDR:MASTER_PORT (firewall), has one failed before it joined?";
  else if (says("world") || says("WORLD_SIZE"))
    finding.advice = "WORLD_SIZE must be the same on all ranks: the number of processes.";
  else
    finding.advice = "docs/failures.md lists what errors of joining mean.";
  return finding;
}

std::vector<Finding> check_machine(const MachineOptions& options) {
  const dist::Getenv get = [](const char* name) { return std::getenv(name); };
  std::vector<Finding> findings{check_environment(get), check_descriptors(options.ranks),
                                check_shared_memory(options.ranks, options.bytes),
                                check_folder(options.folder, options.bytes)};
  if (findings[0].good) {
    const auto info = dist::read_environment(get);
    if (info && info->rank == 0 && !info->rendezvous.empty())
      findings.push_back(check_meeting_place(info->rendezvous));
  }
  return findings;
}

}  // namespace lockstep::doctor
