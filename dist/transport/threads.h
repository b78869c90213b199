#pragma once
/// The transport between ranks that are threads of one process. Streams are byte rings, regions are
/// anonymous pages of the process. ThreadSanitizer sees every access.

#include <memory>
#include <vector>

#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

struct ThreadsOptions {
  std::size_t stream_bytes = 256 * 1024;  ///< of each stream, a power of two; see stream_capacity()
  Seconds join_timeout{60};               ///< how long allocate() waits for the other ranks
};

/// One transport per rank, to be moved into that rank's thread. A rank that destroys its transport
/// has left: the others notice when they need something from it.
std::vector<std::unique_ptr<Transport>> threads_transports(int size, ThreadsOptions options = {});

}  // namespace lockstep::dist
