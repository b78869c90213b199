#pragma once
/// Who sends what to whom, and when: the plan of a collective for one rank is a list of steps. It
/// is a pure function of its input. It knows neither bytes nor transports, and so it can be tested
/// exhaustively without any I/O. An Executor carries it out (dist/collectives/executor.h).
///
/// Words: the *buffer* is the tensor that the collective works on. It is cut into as many *parts*
/// as there are ranks (`partition`), and rank r *owns* part r. A *slot* is scratch memory for what
/// comes from one peer.
///
/// Each algorithm has a file, which draws it and says what it costs: ring.cpp, two_shot.cpp,
/// one_shot.cpp, halving.cpp, hierarchical.cpp, tree.cpp (broadcast and barrier).
///
/// Headers: the first message between two ranks begins with a header of 64 bytes that says which
/// collective this is: operation, algorithm, dtype, count, number, name (call_header.h). In every
/// plan rank r's first message goes to r + 1, and the first that it takes comes from r - 1. If the
/// ranks call different collectives, then some rank receives a header that is not its own. It
/// breaks its communicator, which tells all others why: no rank waits for ever.

#include <vector>

#include "lockstep/dist/collectives/operation.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

/// A step sends and receives at the same time. Then it acts.
struct Step {
  enum class Into : std::uint8_t {
    buffer,  ///< received elements are stored in the buffer
    sum,     ///< they are added to the buffer
    slot,    ///< they are stored in `slot`
  };
  enum class Action : std::uint8_t {
    none,
    copy_in,         ///< own part of the buffer (in shared memory: of all ranks') := the input
    copy_out,        ///< the output := own part of the buffer (reduce_scatter)
    reduce_slots,    ///< `reduced` := tree sum of `sources` ranges. Number `mine` is `reduced`
                     ///< itself; the others are the slots, in order
    add_slots,       ///< `reduced` += tree sum of the first `sources` slots
    reduce_regions,  ///< in shared memory: own part, on every rank := tree sum over all ranks
  };

  int to = -1;      ///< the rank to send to, or -1
  Range send{};     ///< elements of the buffer; may be empty
  int from = -1;    ///< the rank to receive from, or -1
  Range receive{};  ///< the elements of the buffer that arriving ones belong to
  Into into = Into::buffer;
  int slot = 0;
  bool header = false;  ///< the message sent and the one received both begin with a header
  Action action = Action::none;
  Range reduced{};
  int sources = 0, mine = 0;
};

struct PlanInput {
  Operation operation = Operation::barrier;
  Algorithm algorithm = Algorithm::two_shot;  ///< broadcast and barrier have their own
  int rank = 0;
  int world = 1;
  std::int64_t count = 0;          ///< elements of the buffer
  int root = 0;                    ///< of a broadcast
  const NodeMap* nodes = nullptr;  ///< for Algorithm::hierarchical

  Range part(int owner) const { return partition(count, world, owner); }
  bool operator==(const PlanInput&) const = default;
};

using Plan = std::vector<Step>;

/// Overwrites `plan`, whose memory is reused: repeated calls allocate nothing.
void make_plan(const PlanInput& input, Plan& plan);

/// The scratch memory that a plan needs.
struct Scratch {
  int slots = 0;
  std::int64_t slot_elements = 0;  ///< of the largest message that a slot must hold
  bool sums = false;               ///< some step receives with Into::sum
};
Scratch scratch_of(const Plan& plan);

}  // namespace lockstep::dist
