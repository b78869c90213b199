#pragma once
/// Flags by which the streams of ranks wait for each other, and the row of operations in which they
/// are set and awaited: dist/gpu/ipc_engine.cpp.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "lockstep/dist/gpu/peer_memory.h"

namespace lockstep::dist {

class Flags {
 public:
  /// `purposes` flags between each pair of ranks. Collective, and blocks.
  Flags(int purposes, Device device, HostCommunicator& host);

  /// Notes an operation; run() enqueues what was noted, in that order, as one.
  void signal(int peer, int purpose);
  void await(int peer, int purpose);
  void run(cudaStream_t stream);

  /// All streams go on when all of them are here.
  void meet(int purpose, cudaStream_t stream);

  /// Sets every flag of this rank, again and again until the stream has come to its end or
  /// `patience` has passed.
  void release(cudaStream_t stream, Seconds patience) noexcept;

 private:
  CUdeviceptr flag(int at, int of, int purpose) const;

  int rank_, size_, purposes_;
  SharedRegion memory_;
  std::vector<CUstreamBatchMemOpParams> row_;
};

}  // namespace lockstep::dist
