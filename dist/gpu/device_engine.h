#pragma once
/// What moves and sums tensors between the GPUs of a world. An engine only enqueues: once it is
/// made the host does not wait in it, and the ranks' streams wait for each other.
///
///   engine        between              how
///   ipc           GPUs of one machine  kernels of ours read and write the peers' memory, which
///                                      CUDA IPC maps (between threads: plain pointers); streams
///                                      wait for values that the peers' streams write
///   nccl          any GPUs, one each   NCCL's own collectives
///   nccl-direct   the same             NCCL carries the bytes, our kernels reduce in tree order
///
/// Determinism: `nccl` and the ring of `ipc` give the same bits for the same calls (level *run*);
/// `nccl-direct` and the two-shot of `ipc` give the bits of the host's two-shot (level *layout*).

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/gpu/stream.h"
#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::dist {

enum class EngineKind : std::uint8_t {
  /// nccl where every rank has its own GPU (nccl_direct if two_shot is asked for). Else, and for
  /// the ring: ipc among at most 16 ranks of one machine whose GPUs reach each other. Else none.
  automatic,
  none,
  ipc,
  nccl,
  nccl_direct,
};

inline std::string_view name_of(EngineKind kind) {
  static constexpr std::array<std::string_view, 5> names{"auto", "none", "ipc", "nccl",
                                                         "nccl-direct"};
  return names[static_cast<std::size_t>(kind)];
}

class DeviceEngine {
 public:
  virtual ~DeviceEngine() = default;
  /// What all-reduces take: "ring, by ipc", "two-shot, by ipc", "nccl", "nccl-direct".
  virtual std::string_view algorithm() const = 0;

  /// Zeroed memory of this rank's GPU that the engine reaches without a copy. Collective; blocks.
  virtual Storage allocate(std::size_t bytes) = 0;
  /// Where in which allocation a buffer lies, if that must be the same on all ranks.
  virtual RegionPlace place_of(const Tensor& /*buffer*/) const { return {}; }
  /// Enqueues a call on the stream; its tensors lie on one GPU. All ranks enqueue the same calls in
  /// the same order. A buffer outside the memory of allocate() that is larger than those before may
  /// make it block, as allocate() does.
  virtual void enqueue(const CollectiveCall& call, const Stream& stream) = 0;
  /// What has gone wrong on the GPUs or between them; empty if nothing. Does not block.
  virtual std::string failure() { return ""; }
  /// Releases streams that wait for peers; the contents of the tensors are then undefined. Blocks
  /// until they are released, a few seconds at most.
  virtual void abort(const Stream& stream) noexcept = 0;
};

/// The engine of this kind between the ranks of `host`, for this rank's `device`; null for none.
/// `algorithm`: ring, or else two-shot. Collective; blocks. Throws on every rank: UsageError where
/// ranks share a GPU under NCCL, for several machines under ipc, in a build without the engine;
/// DeviceError where ipc was asked for and GPUs do not reach each other.
std::unique_ptr<DeviceEngine> make_engine(EngineKind kind, Algorithm algorithm, Device device,
                                          HostCommunicator& host);

/// Throws StateError in a step that is being recorded: the memory that a call needs besides its
/// tensors, `bytes`, would be the recording's.
void check_not_recording(std::size_t bytes);

/// What make_engine chooses from. Collective; block until all ranks have called, or throw CommError
/// after host.timeout(). `kind`: nccl or nccl_direct; UsageError in builds without NCCL.
std::unique_ptr<DeviceEngine> ipc_engine(Algorithm algorithm, Device device,
                                         HostCommunicator& host);
std::unique_ptr<DeviceEngine> nccl_engine(EngineKind kind, Device device, HostCommunicator& host);
bool nccl_available();  ///< in this build

}  // namespace lockstep::dist
