#pragma once
/// The transport between processes of one machine: shared memory without a name.
///
/// Rank 0 makes a memfd, the rendezvous passes its descriptor on, all ranks map it:
///
///   who gave up and why · is rank 0, 1, ... here? · ring 0->1 · ring 0->2 · ... · ring n-1->n-2
///
/// A region is one more memfd with a part for each rank. Nothing of this has a name in a file
/// system, so nothing is left behind, however the processes end.
///
/// The end of a process is noticed by the rendezvous's connections: rank 0 sees everybody's and the
/// others see rank 0's, and whoever sees one end marks that rank as gone in the memory, for all to
/// see. They look while they nap, so that spinning costs nothing extra.

#include <memory>

#include "lockstep/dist/rendezvous/rendezvous.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// Collective. Throws CommError if memory is short, naming the size needed, or if the ranks are on
/// several machines.
std::unique_ptr<Transport> shm_transport(std::shared_ptr<Rendezvous> rendezvous);

}  // namespace lockstep::dist
