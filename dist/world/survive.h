#pragma once
/// Going on without the ranks that a job has lost, and with others that join:
///
///   World world = World::join();
///   nn::Sequential model{...};  // model, optimizer and position live here
///   nn::Checkpoint shared;      // knows all of them
///   survive(world, [&](World& world) {
///     optimizer.zero_grad();      // of a step that was begun
///     shared.share(world, step);  // the state of the rank that is furthest
///     dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
///     const data::LoaderOptions options{.batch = 64, .begin = position, .lanes = 8};
///     for (const data::Batch& batch : data::Loader(train, options, world, epoch)) {
///       ... backward, optimizer.step(), optimizer.zero_grad() ...
///       position = batch.position, ++step;
///       shared.mark();  // this step is taken: it is not repeated
///     }
///   });
///
/// The launcher must allow it (LaunchOptions::survive, `lockstep-run --survive`). Without it this
/// is body(world). With lanes (core/lanes.h) the result has the bits of a run that lost no rank.
///
/// A rank is lost if a signal has killed it, if others found it hanging (the launcher then kills
/// it), or if its machine is lost. The launcher then publishes a new generation
/// (dist/rendezvous/survival/generation.h). The ranks that are left end `body` by a CommError,
/// which destroys what body has made, join a new world, and call body again. No step is lost: a
/// step that one rank has taken is taken by all, and a step that no rank has taken is repeated. For
/// this
///   - body leaves its state as it was before the step whenever a collective throws. Steps of
///     optimizers do that, without a collective in them: not with Optimizer::shard.
///   - what refers to the world is made anew by body: DDP, Loader, groups, convert_sync_batchnorm.
///     A DDP that lives outside of body is a StateError, and so is a DDP that is made before
///     share().
///   - mark() follows each step before the next collective, which is a StateError else. So a step
///     is one backward: a second network that steps in between needs a separate mark().
///
/// In a job that may lose ranks, UsageError is thrown by Optimizer::shard, dist::Trace,
/// dist::HashTrace, asynchronous checkpoints, and World::join with MPI, NCCL or CUDA IPC. With
/// lanes, backward refuses every communication hook. Without lanes, what the hook of a lost rank
/// kept (error feedback) is lost.
///
/// A rank joins at the edge of a step: `lockstep-run --respawn N` starts one for each of the first
/// N that are lost, and SIGUSR1 to a launcher starts one more on its machine. When it is ready, the
/// launcher publishes a generation with it, the next collective of each rank throws, and all go on
/// as after a loss. The new rank gets all from share(): its body must not depend on how it has
/// begun.
///
/// No rank returns before all ranks of its world have ended body. If one is lost meanwhile, body is
/// called once more and finds that nothing is left to train: what it writes at its end is written
/// again.

#include <functional>

#include "lockstep/dist/world/world.h"

namespace lockstep {

struct SurviveOptions {
  int most_ranks = 0;  ///< with so many no other can join: with lanes, their number. 0: no limit
};

/// Collective. `world` is the job's, not a group; afterwards it is the last one that was joined.
/// survive() throws other errors than CommError as they are, and a CommError if the launcher has
/// lost no rank within five seconds.
///
/// Thread-safety: call it from the thread that has joined.
void survive(World& world, const std::function<void(World&)>& body,
             const SurviveOptions& options = {});

}  // namespace lockstep
