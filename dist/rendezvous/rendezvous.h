#pragma once
/// The rendezvous of a world: a star of connections with rank 0 in the middle. Every rank gives
/// some bytes and gets everybody's. Used to build transports, and kept open afterwards so that the
/// end of a process is noticed at once.
///
///     1   2   3
///      \  |  /           a frame is: length (u32, little-endian), kind (one byte), bytes
///        [ 0 ]
///
/// Before anything else is read, each side proves that it belongs to the job: dist/rendezvous/handshake.h.
///
/// Thread-safety: one Rendezvous belongs to one rank and is used by one thread at a time.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/rendezvous/handshake.h"

namespace lockstep::dist {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Element r of the result is what rank r gave. Collective and blocking. `what` names the
  /// exchange in errors: after the join timeout, CommError lists the ranks that did not arrive. All
  /// ranks' bytes together must be less than 16 MiB.
  virtual std::vector<std::string> all_gather(std::string_view what, std::string_view mine) = 0;

  /// Rank 0's file descriptor, duplicated into every rank (the caller owns the result; rank 0 gets
  /// its own back). Collective. Throws CommError where ranks are on several machines.
  virtual int share_descriptor(std::string_view what, int descriptor) = 0;

  /// The address by which the other ranks can scope this one: "127.0.0.1" on one machine, else the
  /// one that was asked for (LOCKSTEP_INTERFACE), or the local address of the connection that
  /// reached rank 0.
  virtual std::string address() const = 0;

  /// The ranks whose connection has ended, as far as this rank can see: rank 0 sees everybody, the
  /// others see rank 0. Does not block.
  virtual std::vector<int> gone() = 0;

  /// Tells the others that this rank gives up, and why: rank 0 tells everybody, the others tell
  /// rank 0, which passes it on as soon as it looks. The first reason wins. Best effort, does not
  /// block.
  virtual void abort(std::string_view reason) noexcept = 0;
  /// The reason with which a rank gave up, as far as this rank can see; else empty. Does not block.
  virtual std::string aborted() = 0;

  /// What proves to another connection of this job (a transport's, say) that we belong to it.
  virtual const Credentials& credentials() const = 0;
  virtual Seconds timeout() const = 0;
};

struct RendezvousOptions {
  Endpoint address;  ///< where rank 0 listens
  bool one_machine = true;
  Credentials credentials;
  Seconds timeout{60};  ///< until all ranks have joined, and for each exchange afterwards
  Purpose purpose = Purpose::rendezvous;
  std::string_view members = "rank";  ///< what errors call those who join
  std::string own_address = {};       ///< what address() says among machines, if not empty
};

/// Meets the other ranks. Throws CommError after the timeout, listing the ranks that did not
/// arrive, and at once if a rank comes twice, does not fit into the world, or speaks another
/// protocol version; PeerError if a rank that had come is gone before all have. A connection with a
/// wrong token, or of strangers, is closed; it does not disturb. Rank 0 may join after the others.
/// A world of 1 opens nothing. Rank 0 may already listen at the address.
std::shared_ptr<Rendezvous> join_rendezvous(const RendezvousOptions& options,
                                            Descriptor listener = {});

/// What a launcher says, as options: the address is `launch.rendezvous`, or else a socket in a private
/// folder (mode 0700, made if missing) of this user, under XDG_RUNTIME_DIR or /tmp, named after the
/// job. Throws CommError if that folder belongs to somebody else or is open to others.
RendezvousOptions rendezvous_options(const Launch& launch, Seconds timeout);

}  // namespace lockstep::dist
