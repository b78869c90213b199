#pragma once
/// The ranks that train together, as one of them sees it.
///
///   World world = World::join();   // in a program that a launcher starts once per rank
///   run_threads(4, {}, [](World& world) { ... });   // or ranks as threads of this process

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/shard.h"
#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/collectives/object_collectives.h"

namespace lockstep {

struct SurviveOptions;

namespace dist {
class LauncherLink;
}

/// Of World::join and run_threads.
struct JoinOptions {
  std::string comm = "auto";  ///< one of communicator_names()
  /// shm or tcp; empty: shm inside a machine, tcp between machines. Or ipc, for tensors on GPUs;
  /// those on the host then use what an empty text means.
  std::string transport = "";
  dist::Seconds timeout{60};  ///< for joining, and for a collective in which nothing moves
};

/// What JoinOptions::comm can be:
///   auto, ring, direct, one-shot, halving, hierarchical   an algorithm: dist/collectives/choice.h
///   nccl, nccl-direct   engines for tensors on GPUs (dist/gpu/device_engine.h); on the host: auto
///   mpi                 MPI's collectives and transport
/// With auto and direct, tensors on GPUs use NCCL if every rank has a GPU that no other rank uses.
/// Otherwise, and with ring, they use CUDA IPC if the ranks are on one machine. Elsewhere they must
/// be copied to the host (DDP does that).
std::vector<std::string> communicator_names();

/// A value: copies stand for the same membership, which ends with the last of them. Ranks that
/// still work are not disturbed. But if it ends while an exception is being thrown, the other ranks
/// fail instead of waiting for this one. With our launcher, a rank that is still in it when others
/// have ended theirs must be at work (core/system/progress.h), or it hangs: end the World before
/// long computations of your own.
///
/// Every call on a World that was moved from throws StateError.
///
/// Thread-safety: one World belongs to one rank and is used by one thread at a time.
class World {
 public:
  /// Joins the world that the environment describes (dist/rendezvous/environment.h), which may also
  /// ask that the rank ends with its parent. A process that was started alone is a world of 1. From
  /// now on an uncaught error ends the process with one line and an exit code
  /// (report_uncaught_errors, dist/rendezvous/events/failure_record.h). Blocks until all ranks have
  /// joined. Throws UsageError for options or an environment that make no sense; CommError and
  /// PeerError as join_rendezvous.
  static World join(const JoinOptions& options = {});

  /// The same over a link to a launcher that loses ranks (world/launcher_link.h): joins its newest
  /// generation, which must be `at_least` this one.
  static World join_over(const std::shared_ptr<dist::LauncherLink>& link, int at_least = 0);

  int rank() const;        ///< this rank's number, from 0
  int size() const;        ///< how many ranks there are
  int local_rank() const;  ///< among the ranks of this machine
  int local_size() const;  ///< how many of them there are
  /// For collectives among all ranks. It lives as long as the world.
  dist::Communicator& communicator() const;
  /// A second communicator among the same ranks, with a separate order of calls: for collectives of
  /// layers, within forward and backward. The first one runs the reducer's buckets in call order,
  /// and when a bucket is called depends on what each rank's loss reaches. Collective the first
  /// time.
  dist::Communicator& layer_communicator() const;
  /// Of a job that survives (survive.h): how often a new world was made, and who is in this one, by
  /// the numbers that the launcher gave them. In other jobs 0, and all ranks.
  int generation() const;
  const std::vector<int>& members() const;
  /// "shm", "tcp", "shm+tcp", "mpi" or "threads" (also in a world of 1).
  std::string_view transport() const;

  /// Who this rank is in the largest world of more than one rank that lives here: nothing if there
  /// is none. A world of threads (run_threads) lives on its thread, one that was joined everywhere
  /// in its process. For what must not be forgotten, such as DDP; any thread may ask.
  static std::optional<Shard> living();

  /// This rank's part of the data.
  operator Shard() const { return {rank(), size()}; }

  /// A world of some of the ranks, in the order of this world; nothing on the other ranks.
  /// Collective over all ranks of this world, with the same `ranks` everywhere. local_rank() stays
  /// the rank's place on its machine. A rank in several groups must use their communicators in the
  /// same order as the others, or they deadlock. Throws UsageError for a rank that does not exist
  /// or is listed twice, CommError if ranks give different lists.
  std::optional<World> new_group(const std::vector<int>& ranks) const;
  /// Several groups at once: of the ranks that give the same color. Nothing for a negative color.
  std::optional<World> split(int color) const;

  /// Lets the other ranks fail, with this reason.
  void abort(std::string_view reason) const noexcept;

 private:
  friend void run_threads(int, const JoinOptions&, const std::function<void(World&)>&);
  friend void survive(World&, const std::function<void(World&)>&, const SurviveOptions&);
  struct State;
  explicit World(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Of a job that survives; null in others, and for groups and threads.
  const std::shared_ptr<dist::LauncherLink>& launcher_link() const;
  /// Throws StateError for a World that was moved from.
  State& state() const;

  std::shared_ptr<State> state_;
};

/// Runs `body` on `size` threads, each a rank of one world. Returns when all have ended. If one of
/// them threw, the others are made to fail, and the first error is thrown that is not a consequence
/// of another rank's (PeerError). A thread cannot be ended from outside: if one goes on for
/// options.timeout after the others have failed, one line on stderr says which, and how they have
/// failed; this returns when it ends. Throws StateError if replicas of a model differed when their
/// DistributedDataParallel ended (left_replicas.h), Error if a thread cannot be started, UsageError
/// if `options.transport` is neither empty nor "threads", or in the scope of an Autocast, which
/// would not reach the ranks.
void run_threads(int size, const JoinOptions& options, const std::function<void(World&)>& body);

namespace dist {
/// on_rank0 (collectives/object_collectives.h) over the world's communicator.
inline void on_rank0(const World& world, const std::function<void()>& task,
                     std::optional<Seconds> timeout = {}) {
  on_rank0(world.communicator(), task, timeout);
}
/// sum_over_ranks (collectives/object_collectives.h) over the world's communicator.
inline double sum_over_ranks(const World& world, double value) {
  return sum_over_ranks(world.communicator(), value);
}
}  // namespace dist

}  // namespace lockstep
