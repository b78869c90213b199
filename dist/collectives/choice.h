#pragma once
/// Which algorithm an all-reduce takes: the algorithm that the alpha-beta-gamma model predicts to
/// be done first (dist/collectives/plan/plan.h). The choice is a pure function of the bytes, the
/// world, the memory and the costs, so that all ranks choose alike. The costs are constants per
/// transport.
///
/// Determinism: the bits of a result depend on the choice only where "ring" and "hierarchical" are
/// among the candidates; all others add up the same tree.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/dist/collectives/plan/plan.h"

namespace lockstep::dist {

/// What `--comm` asks for: auto, ring, direct, one-shot, halving or hierarchical; nothing for
/// another name. "direct" is the tree of two_shot, by the fastest of its variants.
std::optional<Algorithm> algorithm_named(std::string_view name);

/// Whether the algorithm that Communicator::algorithm() names adds up in tree order, so that the
/// bits depend neither on buckets nor on transports.
bool adds_in_tree_order(std::string_view algorithm);

/// Of a transport; all in seconds.
struct TransportCosts {
  double hop = 1e-6;        ///< until a small message has arrived (alpha)
  double byte = 0.2e-9;     ///< for each byte of a stream (beta)
  double crowd = 0.1;       ///< the share by which `byte` grows for each further stream at once
  double add = 0.05e-9;     ///< for each byte that is added (gamma)
  double region = 0.06e-9;  ///< for each byte that is reduced in shared memory; nothing travels
};

/// The constants for "shm", "threads", "tcp", ...: orders of magnitude of common machines.
TransportCosts default_costs(std::string_view transport);

/// What there is to choose from.
struct Choice {
  Algorithm requested = Algorithm::automatic;  ///< any but `two_shot_shared` and `device`
  int world = 1;
  const NodeMap* nodes = nullptr;  ///< null: all ranks on one machine, or not known
  bool shared_memory = false;      ///< the transport has it
  TransportCosts costs;
};

/// The algorithm for `bytes` bytes; never automatic. `in_region`: the buffer lies in shared memory.
/// Where two_shot is requested, the fastest algorithm with its bits. Operations other than
/// all_reduce take ring or two_shot.
Algorithm choose(const Choice& choice, Operation operation, std::size_t bytes, bool in_region);

/// The predicted duration of an all-reduce; the formulas stand with the algorithms.
double predicted_seconds(const Choice& choice, Algorithm algorithm, std::size_t bytes);

/// "up to 8 KiB one-shot; beyond two-shot-shared"
std::string describe_choices(const Choice& choice, bool in_region);

}  // namespace lockstep::dist
