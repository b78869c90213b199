#pragma once
/// The transport of a world over several machines: streams to ranks of the same machine go through
/// shared memory, all others through TCP. ("shm+tcp")

#include <memory>

#include "lockstep/dist/rendezvous/node_map.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// `between` reaches all ranks; `inside`, those of this rank's node by their places in it, or null
/// where it is alone there.
std::unique_ptr<Transport> node_transport(std::unique_ptr<Transport> between,
                                          std::unique_ptr<Transport> inside, NodeMap nodes);

}  // namespace lockstep::dist
