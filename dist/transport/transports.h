#pragma once
/// How the transports of transport.h are made. A Transport owns what it needs.
///
/// Thread-safety: threads_transports() may be called by any thread; the others are collective, and
/// use the rendezvous of the rank that calls.

#include <memory>
#include <vector>

#include "lockstep/dist/rendezvous/rendezvous.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

struct ThreadsOptions {
  std::size_t stream_bytes = 256 * 1024;  ///< of each stream, a power of two; see stream_capacity()
  Seconds join_timeout{60};               ///< how long allocate() waits for the other ranks
};

/// Between ranks that are threads of one process: one transport per rank, to be moved into that
/// rank's thread. A rank that destroys its transport has left. Throws UsageError for a size below 1
/// or a stream_bytes that is no power of two, CommError if memory is short.
std::vector<std::unique_ptr<Transport>> threads_transports(int size, ThreadsOptions options = {});

/// Between processes of one machine, over shared memory without a name. Rank 0 makes a memfd, the
/// rendezvous passes its descriptor on, all ranks map it. A region is one more memfd with a part
/// for each rank. No name in a file system means that nothing is left behind, however processes
/// end.
///
/// The connections of the rendezvous show the end of a process: rank 0 sees the end of any other
/// rank, the others see rank 0's. The rank that sees an end marks the ended rank as gone in the
/// memory, for all ranks. Ranks look while they nap, so that spinning costs nothing extra.
///
/// Throws CommError if memory is short, with the size needed, or if ranks are on several machines.
std::unique_ptr<Transport> shm_transport(std::shared_ptr<Rendezvous> rendezvous);

/// Over TCP, between machines or within one: a socket for every pair of ranks. Each rank listens on
/// a free port, the rendezvous tells every rank the addresses, and the higher rank of a pair
/// connects to the lower one. A stream ends only after all bytes sent through it have been
/// received. The reason of a rank that gives up travels by the rendezvous. Bytes travel in frames
/// with tags (tcp/checked_stream.h).
///
/// Throws CommError, with both ranks and the address, if a connection cannot be made within the
/// rendezvous's timeout; PeerError if a rank is gone or gave up before.
std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Rendezvous> rendezvous);
/// The same over connections that have been made, by rank; this rank's own is empty.
std::unique_ptr<Transport> tcp_transport(std::shared_ptr<Rendezvous> rendezvous,
                                         std::vector<Connection> connections);

/// For a world over several machines ("shm+tcp"): streams to ranks of the same machine go through
/// `inside`, all others through `between`. `between` reaches all ranks. `inside` reaches those of
/// this rank's node by their places in it; it is null where the rank is alone there.
std::unique_ptr<Transport> node_transport(std::unique_ptr<Transport> between,
                                          std::unique_ptr<Transport> inside, NodeMap nodes);

}  // namespace lockstep::dist
