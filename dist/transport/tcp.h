#pragma once
/// The transport over TCP, between machines or within one: a socket for every pair of ranks. Each
/// rank listens on a free port, the rendezvous tells everybody the addresses, and the higher rank of a
/// pair connects to the lower one. A socket ends only after everything sent through it has been
/// received; a reason for giving up travels by the rendezvous.

#include <memory>

#include "lockstep/dist/rendezvous/rendezvous.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// Collective. Throws CommError, with both ranks and the address, if a connection cannot be made
/// within the rendezvous's timeout.
std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Rendezvous> rendezvous);

}  // namespace lockstep::dist
