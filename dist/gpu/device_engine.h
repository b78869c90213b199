#pragma once
/// What moves and sums tensors between the GPUs of a world. An engine only enqueues: the host never
/// waits in it once it is made, and ranks are ordered by their streams.
///
///   engine        between              how
///   ipc           GPUs of one machine  kernels of ours read and write the peers' memory, which
///                                      CUDA IPC maps (between threads: plain pointers); streams
///                                      wait for values that the peers' streams write
///   nccl          any GPUs, one each   NCCL's own collectives
///   nccl-direct   the same             NCCL carries the bytes, kernels of ours fold in tree order
///
/// Determinism: `nccl` and the ring of `ipc` give the same bits for the same calls, `nccl-direct` and
/// `ipc` otherwise those of "direct" (dist/collectives/plan.h). All ranks get the same bits.

#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/gpu/stream.h"
#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::dist {

enum class EngineKind : std::uint8_t {
  /// nccl where every rank has a GPU of its own (nccl_direct for Algorithm::direct), else, and for
  /// the ring, ipc among at most 16 ranks of one machine whose GPUs reach each other, else none
  automatic,
  none,
  ipc,
  nccl,
  nccl_direct,
};
std::string_view name_of(EngineKind kind);

/// A collective on tensors of one GPU. `part` as in Communicator's all_gather (the input) and
/// reduce_scatter (the output).
struct DeviceCollective {
  Operation operation = Operation::all_reduce;
  Tensor buffer{}, part{};
  int root = 0;
};

class DeviceEngine {
 public:
  virtual ~DeviceEngine() = default;
  virtual EngineKind kind() const = 0;
  /// What all-reduces take: "ring, by ipc", "direct, by ipc", "nccl", "nccl-direct".
  virtual std::string_view algorithm() const { return name_of(kind()); }

  /// Zeroed memory of this rank's GPU that the engine reaches without a copy. Collective, blocks.
  virtual Storage allocate(std::size_t bytes) = 0;
  /// Where in which allocation a buffer lies, if that must be the same on all ranks.
  virtual RegionPlace place_of(const Tensor& buffer) const = 0;
  /// Enqueues a job on the stream. All ranks enqueue the same jobs in the same order. The first job
  /// of a size that does not lie in memory of allocate() may block, as allocate() does.
  virtual void enqueue(const DeviceCollective& job, const Stream& stream) = 0;
  /// What went wrong on the GPUs or between them since; empty if nothing. Does not block.
  virtual std::string failure() = 0;
  /// Releases streams that wait for peers, whatever is in the tensors then; blocks until they are
  /// released, a few seconds at most.
  virtual void abort(const Stream& stream) noexcept = 0;
};

/// The engine of this kind between the ranks of `host`, for this rank's `device`; null for none.
/// `algorithm`: ring, or else direct. Collective, and blocks. Throws UsageError, on every rank, where
/// it cannot be: ranks that share a GPU under NCCL, several machines under ipc, a build without it;
/// DeviceError, on every rank, where ipc was asked for and GPUs do not reach each other.
std::unique_ptr<DeviceEngine> make_engine(EngineKind kind, Algorithm algorithm, Device device,
                                          HostCommunicator& host);

}  // namespace lockstep::dist
