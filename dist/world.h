#pragma once
/// The ranks that train together, as one of them sees it.
///
///   World world = World::join();   // in a program that a launcher starts once per rank
///   run_threads(4, {}, [](World& world) { ... });   // or ranks as threads of this process

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/shard.h"
#include "lockstep/dist/communicator.h"

namespace lockstep {

struct JoinOptions {
  std::string comm = "auto";   ///< auto, ring or direct
  std::string transport = "";  ///< shm or tcp; empty: shm on one machine, else tcp
  dist::Seconds timeout{60};   ///< for joining, and for a collective in which nothing moves
};

/// A value: copies stand for the same membership, which ends with the last of them. That it ends
/// does not disturb ranks that still work, unless it ends while an exception is on its way: then
/// the other ranks fail, too, instead of waiting for us.
///
/// Thread-safety: one World belongs to one rank and is used by one thread at a time.
class World {
 public:
  /// Joins the world that the environment describes (dist/environment.h). A process that was
  /// started alone is a world of 1. Blocks until all ranks have joined. Throws UsageError for
  /// options or an environment that make no sense; CommError as join_store does.
  static World join(const JoinOptions& options = {});

  int rank() const;
  int size() const;
  int local_rank() const;  ///< among the ranks of this machine
  int local_size() const;
  dist::Communicator& communicator() const;
  /// A second one among the same ranks, with an order of its own: for collectives of layers, within
  /// forward and backward. On the first one they would stand in line with the reducer's buckets,
  /// whose place in that line depends on what each rank's loss reaches. Collective the first time.
  dist::Communicator& layer_communicator() const;
  std::string_view transport() const;  ///< "shm", "tcp" or "threads"; a world of 1 needs no better

  operator Shard() const { return {rank(), size()}; }

  /// Lets the other ranks fail, with this reason.
  void abort(std::string_view reason) const noexcept;

 private:
  friend void run_threads(int, const JoinOptions&, const std::function<void(World&)>&);
  struct Membership;
  explicit World(std::shared_ptr<Membership> membership) : membership_(std::move(membership)) {}

  std::shared_ptr<Membership> membership_;
};

/// Runs `body` on `size` threads, each a rank of one world. Returns when all have ended. If any of
/// them threw, the others are made to fail, and the first error that is not an echo of another's
/// (PeerError) is thrown; Error if a thread cannot be started. `options.transport` must be empty or
/// "threads".
void run_threads(int size, const JoinOptions& options, const std::function<void(World&)>& body);

}  // namespace lockstep
