#pragma once
/// A TCP connection between every pair of ranks. Each rank listens on a free port, the rendezvous
/// tells every rank the addresses, and the higher rank of a pair connects to the lower one.
///
/// Thread-safety: as the rendezvous that is given.

#include <vector>

#include "lockstep/dist/rendezvous/rendezvous.h"

namespace lockstep::dist {

/// This rank's connections, by rank; its own stays empty. Collective. Throws what tcp_transport()
/// throws. A failure is told to all ranks.
std::vector<Connection> connect_mesh(Rendezvous& rendezvous);

/// Throws PeerError if any rank gave up, or if one of `ranks` is gone.
void check_here(Rendezvous& rendezvous, const std::vector<int>& ranks);

}  // namespace lockstep::dist
