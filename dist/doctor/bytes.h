#pragma once
/// Bytes that there are, and how findings write them.

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::doctor {

/// "1.5 GiB", or below 1 GiB "3.0 MiB".
std::string gib(std::uint64_t bytes);

/// Free bytes where `path` lies; nothing, and errno, if that cannot be known.
std::optional<std::uint64_t> free_bytes(const std::string& path);

}  // namespace lockstep::doctor
