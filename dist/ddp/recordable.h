#pragma once
/// What a backward must be like in a step that is being recorded (core/gpu/graph.h): second
/// reading.
///
/// A recorded step runs again without the host, so nothing may depend on what the host would read:
/// no metadata travels. The total is known, every parameter is used, and the sums are the
/// gradients. The step before the recording has checked that the ranks agree, and their calls are
/// compared while the recording is made. Before every 64th replay the host compares what the steps
/// have added (replica_check.h).

#include "lockstep/dist/ddp/ddp_options.h"

namespace lockstep::dist {

/// Throws StateError. `contribution.sync`: as the pauses of no_sync() leave it.
void check_recordable(const Contribution& contribution, const DdpOptions& options,
                      const GradientBuckets& buckets);

}  // namespace lockstep::dist
