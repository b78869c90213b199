// The checks of one process.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "lockstep/core/system/atomic_file.h"
#include "lockstep/dist/doctor/bytes.h"
#include "lockstep/dist/doctor/doctor.h"
#include "lockstep/dist/rendezvous/endpoint.h"

namespace lockstep::doctor {

std::string gib(std::uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  return bytes < (1U << 30U) ? fmt::format("{:.1f} MiB", value / (1U << 20U))
                             : fmt::format("{:.1f} GiB", value / (1U << 30U));
}

std::optional<std::uint64_t> free_bytes(const std::string& path) {
  struct statvfs about {};
  if (::statvfs(path.c_str(), &about) != 0) return {};
  return std::uint64_t{about.f_bavail} * about.f_frsize;
}

std::string to_text(const Finding& finding) {
  std::string text = fmt::format("{:<8}{}: {}", finding.good ? "ok" : "PROBLEM", finding.check,
                                 visible(finding.found));  // it quotes variables and names of hosts
  if (!finding.advice.empty()) text += "\n        " + visible(finding.advice);
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

Finding check_shared_memory(int ranks, std::uint64_t bytes,
                            std::optional<std::uint64_t> available) {
  // Gradients, and a stream of 64 KiB from each rank to each other one.
  const auto count = static_cast<std::uint64_t>(ranks);
  const std::uint64_t needed = count * bytes + count * count * (64U << 10U);
  Finding finding{.check = "shared memory", .found = {}, .advice = {}};
  const dist::Descriptor memory(::memfd_create("lockstep-doctor", MFD_CLOEXEC));
  if (memory.get() < 0) {
    finding.good = false;
    finding.found = fmt::format("memfd_create fails: {}", std::strerror(errno));
    finding.advice = "Allow it (a seccomp filter of a container?), or train with --transport tcp.";
    return finding;
  }
  finding.good = !available || *available >= needed;
  finding.found = fmt::format("{} of memory can be had, {} ranks with {} of gradients each need {}",
                              available ? gib(*available) : "an unknown amount", ranks, gib(bytes),
                              gib(needed));
  if (!finding.good)
    finding.advice =
        "Fewer ranks, a smaller model, or in a container a higher limit (docker run --memory). The "
        "size of /dev/shm does not matter.";
  return finding;
}

double load_average() {
  double load = 0;
  return ::getloadavg(&load, 1) == 1 ? load : 0;
}

Finding check_cores(int ranks, int cores, double load) {
  Finding finding{.check = "cores", .found = {}, .advice = {}};
  finding.found = fmt::format("{} for {} rank{}", cores, ranks, ranks == 1 ? "" : "s");
  if (ranks > cores)
    finding.found += fmt::format(
        ": ranks that share a core wait for each other; start at most {}, or allow more (taskset)",
        cores);
  if (load > cores)
    finding.found += fmt::format(
        "; {:.0f} processes have wanted one in the last minute: times mean little", load);
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

Finding check_socket(const dist::Endpoint& where) {
  Finding finding{.check = "meeting place", .found = {}, .advice = {}};
  const std::string& path = where.path;
  if (::access(path.c_str(), F_OK) != 0) {
    finding.found = fmt::format("unix:{} is free", path);
    return finding;
  }
  std::error_code ignored;
  const bool is_socket = std::filesystem::is_socket(path, ignored);
  std::string why_not;
  const bool listens =
      is_socket && dist::connect_to(where, dist::Deadline(dist::Seconds(1)), why_not);
  if (is_socket && !listens && ::access(path.c_str(), W_OK) == 0) {
    finding.found =
        fmt::format("unix:{} was left by a process that is gone; rank 0 will replace it", path);
    return finding;
  }
  finding.good = false;
  finding.found = fmt::format("unix:{} {}", path,
                              listens     ? "is in use: another job's rank 0 listens there"
                              : is_socket ? "was left by another user's process"
                                          : "is no socket");
  finding.advice = listens ? "End that job, or give this one another path."
                           : fmt::format("Remove it: rm '{}'", path);
  return finding;
}

}  // namespace

Finding check_meeting_place(const std::string& address) {
  Finding finding{.check = "meeting place", .found = {}, .advice = {}};
  try {
    const dist::Endpoint where = dist::Endpoint::parse(address);
    if (where.is_unix()) return check_socket(where);
    const dist::Descriptor listener = dist::listen_on(where, false);
    finding.found = fmt::format("{} is free", address);
  } catch (const Error& error) {
    finding.good = false;
    finding.found = error.what();
    finding.advice = explain_join(error).advice;  // it will be this error
  }
  return finding;
}

namespace {

/// The first line whose words an error of joining holds says what to do.
constexpr std::pair<std::string_view, std::string_view> advice_on_joining[] = {
    {"ame or service not known",
     "This machine does not know the host: is MASTER_ADDR the name or "
     "the address of rank 0's machine (getent hosts NAME)?"},
    {"with hostname", "That host has no address: give MASTER_ADDR as an address."},
    {"name resolution", "Host names cannot be looked up here now: give MASTER_ADDR as an address."},
    {"assign requested address",
     "MASTER_ADDR is no address of this machine: start rank 0 where it is."},
    {"joined twice", "Two processes have the same RANK: give each its own, 0 to WORLD_SIZE - 1."},
    {"another rank 0", "Two processes have RANK=0: give each its own, 0 to WORLD_SIZE - 1."},
    {"already in use",
     "Another process listens there (ss -ltnp shows it): if it is a rank 0 of this "
     "job, give each process its own RANK; if not, choose another MASTER_PORT."},
    {"cannot listen",
     "Choose a MASTER_PORT from 1024 on, or a LOCKSTEP_RENDEZVOUS, where this user may listen."},
    {"belong to this job",
     "Another job listens there, or this process has another secret: choose "
     "another MASTER_PORT, and start all ranks in the same way."},
    {"protocol version", "The ranks are of different builds: start the same one everywhere."},
    {"what listens at", "Something else listens there: choose another MASTER_PORT."},
    {"of this user", "Remove it, or set LOCKSTEP_RENDEZVOUS to another place."},
    {"another user", "Remove it, or set LOCKSTEP_RENDEZVOUS to another place."},
    {"MiB of shared memory", "Memory is short: see 'shared memory' above."},
    {"MiB are needed", "Memory is short: see 'shared memory' above."},
    {"[interface]", "Set LOCKSTEP_INTERFACE to the interface that leads to the others."},
    {"world of", "WORLD_SIZE must be the same on all ranks, the number of processes."},
};

constexpr std::string_view not_come =
    "A rank has not come: is WORLD_SIZE the number of processes that were started, does each reach "
    "MASTER_ADDR:MASTER_PORT (firewall), has one failed before it joined?";

}  // namespace

Finding explain_join(const std::exception& error) {
  Finding finding{.check = "joining", .good = false, .found = error.what(), .advice = {}};
  const auto says = [&](std::string_view text) {
    return finding.found.find(text) != std::string::npos;
  };
  if (dynamic_cast<const UsageError*>(&error)) {
    finding.advice = "It lies in this rank's options or variables, not in the others.";
    return finding;
  }
  for (const auto& [words, advice] : advice_on_joining)
    if (finding.advice.empty() && says(words) && !(words == "world of" && says("missing")))
      finding.advice = advice;
  if (!finding.advice.empty()) return finding;
  if (says("missing") || says("did not find") || says("within") || says("timed out"))
    finding.advice = not_come;
  else if (dynamic_cast<const PeerError*>(&error))
    finding.advice = "Another rank ended while it joined: its own message says why.";
  else
    finding.advice = "docs/failures.md lists what errors of joining mean.";
  return finding;
}

Finding explain_loss(const std::exception& error) {
  Finding finding{.check = "world",
                  .good = false,
                  .found = error.what(),
                  .advice =
                      "The ranks had joined. Has one ended (its own message says why), or been "
                      "started with other options (--comm, --transport)?"};
  if (dynamic_cast<const DeviceError*>(&error))
    finding.advice =
        "A GPU refused work: see the findings above, and what the driver saw (dmesg | grep -i "
        "xid).";
  return finding;
}

std::vector<Finding> check_machine(const MachineOptions& options) {
  const dist::Getenv get = [](const char* name) { return std::getenv(name); };
  std::vector<Finding> findings{check_environment(get), check_descriptors(options.ranks),
                                check_shared_memory(options.ranks, options.bytes),
                                check_cores(options.ranks),
                                check_folder(options.folder, options.bytes)};
  if (findings[0].good) {
    const auto info = dist::read_environment(get);
    if (info && info->rank == 0 && !info->rendezvous.empty())
      findings.push_back(check_meeting_place(info->rendezvous));
  }
  return findings;
}

}  // namespace lockstep::doctor
