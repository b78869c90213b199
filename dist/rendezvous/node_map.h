#pragma once
/// Which ranks share a machine: what hierarchical collectives cut a world by.

#include <string>
#include <vector>

namespace lockstep::dist {

/// Nodes are numbered by their first rank.
struct NodeMap {
  std::vector<std::vector<int>> ranks;  ///< by node, each ascending
  std::vector<int> node_of;             ///< by rank
  std::vector<int> place_of;            ///< by rank: its index in its node
  int local_shards = 0;                 ///< ranks of the smallest node

  bool operator==(const NodeMap&) const = default;
};
/// Ranks with equal names share a node.
NodeMap node_map(const std::vector<std::string>& name_of_node_by_rank);

}  // namespace lockstep::dist
