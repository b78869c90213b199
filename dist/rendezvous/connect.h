#pragma once
/// How ranks connect: of two ranks the lower one accepts and the higher one initiates. Used for the
/// star of a rendezvous (every rank with rank 0) and the mesh of the tcp transport (every pair).
///
/// Several connections of one rank share a deadline, which ends ConnectOptions::timeout after the
/// first began.
///
/// Thread-safety: functions may be called from any thread.

#include <functional>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/handshake.h"

namespace lockstep::dist {

/// How long the reason for a lost connection may take to arrive by another way.
constexpr Seconds reason_time{0.2};

struct ConnectOptions {
  Credentials credentials;
  Seconds timeout{60};
  Purpose purpose = Purpose::rendezvous;
  std::string_view caller = "rendezvous";  ///< errors begin with its name in brackets
  std::string_view members = "rank";       ///< what errors call the processes
  bool of_job = true;  ///< ranks have the numbers of the job: an error may blame one
  /// Called again and again with the ranks that are waited for. It throws if waiting is in vain.
  std::function<void(const std::vector<int>& awaited)> watch = {};
};

/// Connections with all ranks above our own, by rank (those of other ranks stay empty). All of them
/// are admitted, or none. A socket's file is removed before the first is admitted, or when this
/// throws. `listener` listens at `where`.
///
/// Throws CommError after the timeout, with the ranks that are missing, and at once if a rank
/// connects twice, does not fit into the world, or speaks another protocol version; PeerError if a
/// rank is gone before it was admitted. The waiting ranks are told. Connections without the token
/// or for another job are closed and change nothing.
std::vector<Connection> accept_higher_ranks(Descriptor listener, const Endpoint& where,
                                            const ConnectOptions& options,
                                            const Deadline& deadline);

/// A connection with the lower rank `peer`, once it has admitted us. Tries again until the timeout
/// while no process listens at `where`. Throws what `peer` throws in accept_higher_ranks; CommError
/// after the timeout or if the listener does not know the token; PeerError if `peer` stops
/// listening after it was reached (with `watch`, if it has not begun again after 5 seconds).
Connection connect_to_rank(int peer, const Endpoint& where, const ConnectOptions& options,
                           const Deadline& deadline);

}  // namespace lockstep::dist
