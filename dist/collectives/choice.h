#pragma once
/// Which algorithm an all-reduce takes: the one that the alpha-beta-gamma model (dist/collectives/plan.h)
/// predicts to be done first. A pure function of the bytes, the world, the memory and the costs, so
/// that all ranks choose alike; `choices` prints it as a table. The costs are constants per
/// transport, unless they are measured at start-up (JoinOptions::tune).
///
/// The bits of a result depend on the choice only as far as "ring" and "hierarchical" are part of
/// it: all others add up the same tree (dist/collectives/plan.h).

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/dist/collectives/plan.h"

namespace lockstep::dist {

/// auto, ring, direct, one-shot, halving or hierarchical; nothing for another name.
std::optional<Algorithm> algorithm_named(std::string_view name);

/// Whether what Communicator::algorithm() names adds up in tree order, so that the bits depend
/// neither on buckets nor on transports.
bool adds_in_tree_order(std::string_view algorithm);

/// Of a transport; all in seconds.
struct TransportCosts {
  double hop = 1e-6;      ///< until a small message is there (alpha)
  double byte = 0.2e-9;   ///< for each byte of a stream (beta)
  double crowd = 0.1;     ///< by how much of itself that grows for each further stream at once
  double fold = 0.05e-9;  ///< for each byte that is added (gamma)
  /// For each byte that is folded in shared memory, where nothing travels.
  double region = 0.06e-9;

  bool operator==(const TransportCosts&) const = default;
};

/// The constants for "shm", "threads", "tcp", ...: orders of magnitude of common machines.
TransportCosts default_costs(std::string_view transport);

/// What there is to choose from.
struct Choice {
  Algorithm requested = Algorithm::automatic;  ///< any but `shared` and `device`
  int world = 1;
  const NodeMap* nodes = nullptr;  ///< null: all ranks on one machine, or nobody knows
  bool shared_memory = false;      ///< the transport has it
  TransportCosts costs;
};

/// The algorithm for `bytes` bytes; never automatic. `in_region`: the buffer lies in shared memory.
/// "direct" asks for whichever way of being direct is fastest. Operations other than all_reduce are
/// ring or direct.
Algorithm choose(const Choice& choice, Operation operation, std::size_t bytes, bool in_region);

/// What the model says of an all-reduce.
double predicted_seconds(const Choice& choice, Algorithm algorithm, std::size_t bytes);

/// "up to 8 KiB one-shot; beyond shared"
std::string describe_choices(const Choice& choice, bool in_region);

}  // namespace lockstep::dist
