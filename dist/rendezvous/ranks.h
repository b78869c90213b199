#pragma once
/// What every room of dist/ needs to talk about ranks: time, a rank as an index, lists of ranks in
/// errors, numbers in texts, and which ranks share a machine. All functions are pure and may be
/// called by any thread; an object is used by one thread at a time.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::dist {

using Seconds = std::chrono::duration<double>;

/// A rank as an index into what is kept by rank.
constexpr std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

/// "rank 2 is gone", "ranks 1, 2 are gone". `who` is the singular of what is counted.
std::string describe_ranks(const std::vector<int>& ranks, std::string_view state,
                           std::string_view who = "rank");

/// What a transport throws when it has lost a peer. `rank` is the transport's number; code that
/// knows the job's numbers blames the rank (QueuedCommunicator::give_up).
struct LostPeer : PeerError {
  LostPeer(int rank_, Fault how_);
  int rank;
  Fault how;  ///< gone or left
};

/// The number that is the whole of `text`; nothing if it is anything else.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end ? std::optional(value) : std::nullopt;
}

/// Which ranks share a machine: hierarchical collectives cut a world into nodes. Nodes are numbered
/// by their first rank.
struct NodeMap {
  std::vector<std::vector<int>> ranks;  ///< by node, each ascending
  std::vector<int> node_of;             ///< by rank
  std::vector<int> place_of;            ///< by rank: its index in its node
  int local_shards = 0;                 ///< ranks of the smallest node
};
/// Ranks with equal names share a node.
NodeMap node_map(const std::vector<std::string>& name_of_node_by_rank);

}  // namespace lockstep::dist
