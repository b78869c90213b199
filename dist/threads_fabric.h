#pragma once
/// The fabric between ranks that are threads of one process.

#include <memory>
#include <vector>

#include "lockstep/dist/fabric.h"
#include "lockstep/dist/host_communicator.h"
#include "lockstep/dist/threads.h"

namespace lockstep::dist {

/// One fabric per rank, to be moved into that rank's thread.
std::vector<std::shared_ptr<Fabric>> threads_fabrics(int size, const ThreadsOptions& streams,
                                                     const FabricOptions& options);

}  // namespace lockstep::dist
