#pragma once
/// Collectives by kernels that read and write the peers' memory, on GPUs of one machine. Several
/// ranks may share a GPU.
///
/// Every rank owns regions (memory of cudaMalloc that the peers have mapped) and flags, a 32-bit
/// value for each peer and purpose, in memory of its GPU that the peers have mapped, too:
///
///     signal(q, f):  flag f of this rank at q := 1          a stream's write, after all before it
///     await(q, f):   until flag f of q here is 1; := 0      a stream's wait: no kernel spins
///
/// As a flag goes back to 0 each time, the same operations work again when a recorded step is
/// replayed. No flag is set twice without having been awaited: who uses it again has since met all
/// ranks by other flags, which they signalled after they had awaited this one.
///
/// MEETING. Signal all, await all: streams go on when all of them are here. Then
///
///     all_reduce, direct   meet; fold the own part of all regions, in tree order, into all; meet
///     reduce_scatter       meet; fold the own part of all regions into the output; meet
///     all_gather           meet; copy the input into the own part of all regions; meet
///     broadcast            meet; copy the root's region; meet
///
/// RING. The steps of dist/collectives/plan.h: "send" is a signal that the part may be read, "receive" is to
/// await it and to add the left neighbour's part to one's own, or to copy it. A part is written again
/// only by what has come all round the ring, through every rank that read it; only the last ones are
/// acknowledged, to the left neighbour.
///
/// A tensor outside of the regions is copied to a region and back.

#include <memory>

#include "lockstep/dist/gpu/device_engine.h"

namespace lockstep::dist {

/// Collective, and blocks. `algorithm`: ring, or else direct.
std::unique_ptr<DeviceEngine> ipc_engine(Algorithm algorithm, Device device,
                                         HostCommunicator& host);

}  // namespace lockstep::dist
