#pragma once
/// A simulated world: n ranks, a seeded scheduler, a virtual clock, bounded channels with delays,
/// and faults as scheduled events. A run is a pure function of (program, options): what a seed
/// finds, the same seed finds again.
///
/// Each rank runs ordinary blocking code on its own thread, because tapes and generators are per
/// thread. But only one thread runs at any moment: the thread that holds the baton. It may lose the
/// baton at any call to the transport, and it gives it up in relax().
///
///   rank 0  ===send==|            |==receive==relax|
///   rank 1           |==relax|                     |==send== ...      time is counted in calls and
///   rank 2                   |===|                                    jumps when every rank waits
///
/// Sent bytes arrive after a seeded delay, in order within a stream. A send may take fewer bytes
/// than fit, and a receive may give fewer than have arrived. When every rank waits, the clock jumps
/// to the next arrival. If nothing is on its way, it jumps forward until timeouts fire: a deadlock
/// ends as an error.
///
/// Thread-safety: simulate() may be called by any thread; each call has its own world.

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// Strikes at the rank's `at_call`-th call to its transport (the first is number 1).
struct SimFault {
  enum class Kind {
    lost,   ///< the rank is gone; what it has sent still arrives
    stall,  ///< it stands still for `duration`
  };
  int rank = 0;
  std::uint64_t at_call = 1;
  Kind kind = Kind::lost;
  Seconds duration{0};
};

/// From `begin` to `end` nothing passes between these ranks and the others: it arrives at `end`.
struct SimPartition {
  Seconds begin, end;
  std::vector<int> ranks;
};

struct SimOptions {
  std::uint64_t seed = 0;
  int size = 2;
  std::size_t channel_bytes = 4096;  ///< what a stream holds
  Seconds max_delay{1e-3};           ///< arrival takes between 0 and this
  double bytes_per_second = 0;       ///< of a stream, before that delay; 0: any number at once
  bool shared_memory = true;
  int switch_one_in = 4;     ///< the baton changes hands at one call in so many
  Seconds join_timeout{60};  ///< of allocate()
  Seconds longest_jump{1};   ///< of the clock, where nothing is on its way
  std::vector<SimFault> faults = {};
  std::vector<SimPartition> partitions = {};
};

struct SimReport {
  std::vector<std::exception_ptr> errors;  ///< by rank: what its code threw; null if it ended well
  std::vector<bool> lost;                  ///< by rank: a fault took it (and errors has null)
  Seconds end{0};                          ///< virtual time when the last rank ended
  std::uint64_t trace = 0;                 ///< hash of everything that happened, in order
};

/// What a rank does.
using SimProgram = std::function<void(int rank, std::unique_ptr<Transport>)>;

/// Runs `program` on every rank and returns when all have ended. The program must wait only through
/// its transport, and must not catch exceptions that it does not know: a lost rank is unwound by
/// one. Throws UsageError for a size below 1. What the program throws is in the report.
SimReport simulate(const SimOptions& options, const SimProgram& program);

/// For the code of a simulated rank: it computes for `duration`. The clock goes on, other ranks
/// run, and this one neither sends nor receives. Throws UsageError for another transport.
void compute(Transport& transport, Seconds duration);

/// Its transport in another world, of some of the ranks of the simulation: `members`, in the
/// numbers of the transport that the program was given, this rank among them. Ranks that give the
/// same name meet there. It may outlive `transport`. Throws UsageError for another transport, and
/// if a rank has given other members for that name.
std::unique_ptr<Transport> transport_among(Transport& transport, const std::string& name,
                                           const std::vector<int>& members);

/// A rank of the same world is lost now, as by a fault.
void kill(Transport& transport, int rank);

}  // namespace lockstep::dist
