#pragma once
/// Words that every room of dist/ uses: time, and a rank as an index.

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

using Seconds = std::chrono::duration<double>;

/// A rank as an index into what is kept by rank.
constexpr std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

/// "rank 2 is gone", "ranks 1, 2 are gone".
std::string describe_ranks(const std::vector<int>& ranks, std::string_view state,
                           std::string_view who = "rank");

}  // namespace lockstep::dist
