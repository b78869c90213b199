#pragma once
/// What connects the ranks of a world: it makes communicators among all of them, and cuts them into
/// groups, which are worlds of their own.
///
///   fabric      ranks are                 communicators over
///   threads     threads of one process    streams and windows in its memory
///   processes   processes that met in a   shm on one machine, tcp between machines, or both
///               store
///   mpi         processes that MPI        MPI's own collectives
///               started
///
/// Thread-safety: one Fabric belongs to one rank and is used by one thread at a time.

#include <memory>
#include <string_view>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/gpu/device_communicator.h"

namespace lockstep::dist {

struct FabricOptions {
  CommunicatorOptions communicator;
  bool tune = false;  ///< communicators measure what they cost before they choose algorithms
  EngineKind engine = EngineKind::automatic;  ///< for tensors on GPUs
};

class Fabric {
 public:
  virtual ~Fabric() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view transport() const = 0;  ///< "shm", "tcp", "threads", "mpi", ...

  /// A communicator among all ranks, with an order of its own. Collective and blocking.
  virtual std::unique_ptr<Communicator> connect() = 0;

  /// The group of the ranks that gave the same color, which keep their order. Null for a negative
  /// color. Collective over all ranks and blocking. A group outlives the fabric it was cut from.
  virtual std::shared_ptr<Fabric> split(int color) = 0;

  /// Lets ranks fail, with this reason, that wait in connect() or split(). Best effort.
  virtual void abort(std::string_view reason) noexcept = 0;
};

/// A new communicator: tuned, if that is asked for, and with an engine for GPUs in builds that drive
/// them. Collective.
inline std::unique_ptr<Communicator> complete(std::unique_ptr<HostCommunicator> host,
                                              const FabricOptions& options) {
  if (options.tune) host->tune();
  if (!gpu::kind()) return host;
  return std::make_unique<DeviceCommunicator>(std::move(host), options.engine);
}

}  // namespace lockstep::dist
