#pragma once
/// What the system says about this process's memory. Linux only; elsewhere, and where a file cannot
/// be read, nothing is known and nothing is limited.
///
/// `root` stands for /, so that a test can give a tree of its own. May be called by any thread.

#include <cstdint>
#include <filesystem>
#include <optional>

namespace lockstep {

/// Bytes that this process can still take, nothing if unknown: the least of
/// - MemAvailable of /proc/meminfo (without swap), and
/// - for its cgroup (v2) and each above it, memory.max - memory.current + the file pages that the
///   kernel would give up first (active_file and inactive_file of memory.stat).
std::optional<std::uint64_t> available_memory(const std::filesystem::path& root = "/");

/// How many processes of this process's cgroup (v2), and of those below it, the kernel has killed
/// because memory had run out: oom_kill of memory.events. Nothing if unknown.
std::optional<std::uint64_t> out_of_memory_kills(const std::filesystem::path& root = "/");

}  // namespace lockstep
