#pragma once
/// What every room of dist/ needs to talk about ranks: time, a rank as an index, lists of ranks in
/// errors, numbers in texts, and which ranks share a machine. All functions are pure and may be
/// called by any thread; an object is used by one thread at a time.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/core/text/number.h"

namespace lockstep::dist {

using Seconds = std::chrono::duration<double>;

/// A rank as an index into what is kept by rank.
constexpr std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

/// "rank 2", "ranks 1, 2". `who` is the singular of what is counted.
std::string name_ranks(const std::vector<int>& ranks, std::string_view who = "rank");
/// "rank 2 is gone", "ranks 1, 2 are gone".
std::string describe_ranks(const std::vector<int>& ranks, std::string_view state,
                           std::string_view who = "rank");

/// What a transport throws when it has lost a peer. `rank` is the transport's number; code that
/// knows the job's numbers blames the rank (QueuedCommunicator::give_up).
struct LostPeer : PeerError {
  LostPeer(int rank_, Fault how_);
  int rank;
  Fault how;  ///< gone or left
};

/// A text of a peer, up to its first zero. It may hold anything: '?' stands for what cannot be
/// printed.
std::string text_of_peer(std::string_view text);

using lockstep::parse_number;

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
