#pragma once
/// The fabric between processes: they meet in a rendezvous, and route each other through shared memory,
/// TCP, or both: shared memory inside a machine and TCP between machines ("shm+tcp").
///
///   one machine         shm
///   several machines    shm+tcp if some machine has several ranks, else tcp
///
/// A group is a world of its own, with a rendezvous of its own: its first rank listens, the others join
/// it there.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/world/fabric_options.h"

namespace lockstep::dist {

/// Meets the ranks that the launcher has started. Blocks until all have come; errors as join_rendezvous.
/// `transport` is shm or tcp, or empty: then as above. UsageError for a transport that cannot be.
std::shared_ptr<Fabric> process_fabric(const Launch& launch, const std::string& transport,
                                       const FabricOptions& options);

}  // namespace lockstep::dist
