#pragma once
/// Why a step stops on all ranks: second reading.

#include "lockstep/dist/ddp/guards/nonfinite.h"
#include "lockstep/dist/ddp/guards/replica_check.h"

namespace lockstep::dist {

/// Collective: all ranks have read the same metadata `all`, and decided to stop. Throws StateError
/// with what they disagree about, or what one of them has found, and whom to blame.
[[noreturn]] void stop_step(const StepOutcome& outcome, std::span<const StepMetadata> all,
                            ReplicaCheck& replicas, const NonFiniteCheck& nonfinite,
                            Communicator& communicator);

}  // namespace lockstep::dist
