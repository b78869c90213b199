#pragma once
/// Collectives by NCCL, one GPU per rank.
///
/// As `nccl`, all-reduces are NCCL's own. As `nccl-direct`, NCCL only carries the bytes: each part
/// goes to its owner, which folds all contributions in tree order (kernels/tree_reduce.h), and back:
/// grouped sends and receives, as many bytes as a ring, and the bits of "direct". 16-bit elements
/// always travel so: they are then summed in f32 and rounded once. reduce_scatter and all_gather
/// work the same way, since their parts need not be of equal size.
///
/// NCCL's communicator is non-blocking: no call of it can hang where no timeout reaches. Memory of
/// allocate() is NCCL's (ncclMemAlloc) and registered with the communicator.

#include <memory>

#include "lockstep/dist/gpu/device_engine.h"

namespace lockstep::dist {

/// Whether this build has NCCL.
bool nccl_available();

/// `kind`: nccl or nccl_direct. Collective, and blocks until all ranks' communicators are there or
/// host.timeout() has passed (CommError). Throws UsageError in builds without NCCL.
std::unique_ptr<DeviceEngine> nccl_engine(EngineKind kind, Device device, HostCommunicator& host);

}  // namespace lockstep::dist
