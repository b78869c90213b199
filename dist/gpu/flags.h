#pragma once
/// Flags by which the streams of ranks wait for each other (dist/gpu/ipc_engine.cpp), and the list
/// of stream operations that set and await them.
///
/// Thread-safety: none; they belong to one engine.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "lockstep/dist/gpu/peer_memory.h"

namespace lockstep::dist {

class Flags {
 public:
  /// `purposes` flags between each pair of ranks. Collective; blocks.
  Flags(int purposes, Device device, HostCommunicator& host);

  /// Notes an operation. run() enqueues the noted operations, in this order, as one.
  void signal(int peer, int purpose);
  void await(int peer, int purpose);
  void run(cudaStream_t stream);

  /// A meeting: all ranks' streams go on when all have come here.
  void meet(int purpose, cudaStream_t stream);

  /// Sets every flag of this rank, repeatedly, until the stream is idle or `patience` has passed.
  void release(cudaStream_t stream, Seconds patience) noexcept;

 private:
  CUdeviceptr flag(int at, int of, int purpose) const;

  int rank_, size_, purposes_;
  unsigned wait_flags_;
  SharedRegion memory_;
  std::vector<CUstreamBatchMemOpParams> row_;
};

}  // namespace lockstep::dist
