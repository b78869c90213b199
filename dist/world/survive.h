#pragma once
/// Going on without the ranks that a job has lost:
///
///   World world = World::join();
///   Model, optimizer and position live here.
///   survive(world, [&](World& world) {
///     Take the state of the rank that is furthest (nn::Checkpoint::share), make the
///     DistributedDataParallel and the Loader for this world, and train from the position on.
///   });
///
/// The launcher must allow it (LaunchOptions::survive, `lockstep-run --survive`). Without it this
/// is body(world).
///
/// A lost rank is one that a signal has killed, or that others found hanging: the launcher kills
/// that one. It then publishes a new generation (dist/rendezvous/generation.h). The ranks that are
/// left end `body` by a CommError, which destroys what body has made, join a world of their own,
/// and call body again. So body must leave its state, whenever a collective throws, as it was
/// before the step: optimizer steps without a collective in them do.
///
/// No rank returns before all ranks of its world have ended body. If one is lost meanwhile, body is
/// called once more and finds that nothing is left to train: what it writes at its end is written
/// again.

#include <functional>

#include "lockstep/dist/world/world.h"

namespace lockstep {

/// Collective. `world` is the job's, not a group; afterwards it is the last one that was joined.
/// Other errors than CommError are thrown as they are, and so are CommErrors that no lost rank
/// explains: five seconds later nobody is lost.
///
/// Thread-safety: call it from the thread that has joined.
void survive(World& world, const std::function<void(World&)>& body);

}  // namespace lockstep
