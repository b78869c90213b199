#pragma once
/// Which launcher counts where several have set their variables: the nearest, which was the last to
/// start something on the way to this process.
///
/// A launcher of ours notes in LOCKSTEP_STARTED what it has set for a rank, and what it has found
/// of other launchers (`NAME=value`, a space between; characters that do not print are '_'). In the
/// rank, or in what the rank starts:
///
///   all is as noted                               lockstep-run is the nearest
///   those of torchrun, mpirun or srun are there,  that one was started by the rank: it is the
///     and one is another                            nearest, and what lockstep-run has set is
///                                                   passed over
///   RANK or WORLD_SIZE alone is another           was set by hand: an error
///   RANK and WORLD_SIZE are unset                 no rank
///
/// A launcher of ours that a rank of another launcher has started does not pass on what that
/// launcher has set for its ranks alone. It passes on an option that holds for what ranks start,
/// too (LOCKSTEP_INTERFACE, OMP_NUM_THREADS). Where lockstep-run has no part, environment.h has the
/// order.

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/dist/rendezvous/environment.h"

namespace lockstep::dist {

/// `get` without what launchers further out have set.
Getenv nearest_launcher(const Getenv& get);

/// Throws UsageError, with both values, if RANK or WORLD_SIZE was changed by hand.
void check_as_started(const Getenv& get);

/// LOCKSTEP_STARTED of a rank that gets `set`, from a launcher whose environment is `get`.
std::string started_as(std::span<const std::pair<std::string, std::string>> set, const Getenv& get);

/// Whether a launcher of ours sets it for its ranks alone: a launcher that a rank starts does not
/// pass it on.
bool belongs_to_launcher(std::string_view name);

}  // namespace lockstep::dist
