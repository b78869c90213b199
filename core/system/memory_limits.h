#pragma once
/// What the system says about this process's memory. Linux only; elsewhere, and where a file cannot
/// be read, nothing is known and nothing is limited.
///
/// `root` stands for /, so that a test can give another tree. May be called by any thread.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

/// Bytes that this process can still take, nothing if unknown: the least of
/// - MemAvailable of /proc/meminfo (without swap), and
/// - for its cgroup and each above it, memory.max - memory.current + the file pages that the
///   kernel would give up first (active_file and inactive_file of memory.stat); with cgroups v1
///   memory.limit_in_bytes, memory.usage_in_bytes, total_active_file and total_inactive_file.
std::optional<std::uint64_t> available_memory(const std::filesystem::path& root = "/");

/// The bytes that are available, if they are fewer than the `bytes` that are wanted. To ask takes
/// as long as to fill a MiB (some thirty files are read): the system is asked whenever the callers
/// of this process have wanted 4 MiB more in all, and smaller amounts are taken to be there.
std::optional<std::uint64_t> memory_shortage(std::uint64_t bytes);

/// For messages: "1234 bytes of memory are free", and the limit of addresses that `ulimit -v` has
/// set, if it has.
std::string describe_available_memory();

/// How many processes of this process's cgroup, and (v2) of those below it, the kernel has killed
/// because memory had run out: oom_kill of memory.events (v1: memory.oom_control). Nothing if
/// unknown.
std::optional<std::uint64_t> out_of_memory_kills(const std::filesystem::path& root = "/");

}  // namespace lockstep
