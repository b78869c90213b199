#pragma once
/// The fabric between ranks that are threads of one process.

#include <memory>
#include <vector>

#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/transport/threads.h"
#include "lockstep/dist/world/fabric_options.h"

namespace lockstep::dist {

/// One fabric per rank, to be moved into that rank's thread.
std::vector<std::shared_ptr<Fabric>> threads_fabrics(int size, const ThreadsOptions& streams,
                                                     const FabricOptions& options);

}  // namespace lockstep::dist
