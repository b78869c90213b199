#pragma once
/// What connects the ranks of a world: it makes communicators among all of them, and splits them
/// into groups, which are worlds, too.
///
///   fabric      ranks are                 communicators over
///   threads     threads of one process    streams and shared regions in its memory
///   processes   processes that met in a   shm on one machine, tcp between machines, or both
///               rendezvous
///   mpi         processes that MPI        MPI's own collectives
///               started
///
/// Thread-safety: one Fabric belongs to one rank and is used by one thread at a time.
/// Errors: the blocking calls throw CommError or PeerError if a rank fails or does not come.

#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::dist {

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view transport() const = 0;  ///< "shm", "tcp", "threads", "mpi", ...

  /// A communicator among all ranks, with its own call order. Collective; blocks.
  virtual std::unique_ptr<Communicator> connect() = 0;

  /// The group of `members`, ranks in ascending order. Collective over all ranks; may block. Each
  /// rank gives the members of its group. A rank in no group gives none, and gets null. A group
  /// outlives the fabric that it was split from.
  virtual std::shared_ptr<Fabric> split(const std::vector<int>& members) = 0;

  /// Makes ranks that wait in connect() or split() fail with this reason. Best effort.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace lockstep::dist
