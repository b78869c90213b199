#pragma once
/// What the ranks of a communicator are beside their numbers in it, 0 to size() - 1:
///
///     rank of the group   ->   rank of the job       ->   number by which people know it
///            1                        3                        5
///     Communicator::rank()     Error::blame             texts: the launcher's number, which a rank
///                              and launchers            keeps when others are lost
///
/// In a job that loses no ranks the last two are equal. All else uses the communicator's numbers.
/// Thread-safety: as the communicator of which it is a part.

#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/events/left_replicas.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

/// A job that goes on without lost ranks (dist/world/survive.h), as all communicators of one of its
/// worlds know it.
struct Survival {
  std::vector<int> launcher_numbers;  ///< by rank of the job
  bool in_body = false;               ///< survive() runs: what follows is asked for
  bool shared = false;                ///< all have the state of the rank that is furthest
  bool marked = true;                 ///< mark() was called after the last step of an optimizer
};

struct Membership {
  std::vector<int> ranks_in_job = {};       ///< by rank; empty: a communicator of the whole job
  std::shared_ptr<Survival> survival = {};  ///< null: the job does not go on without lost ranks
  ThreadRank thread = {};  ///< of a rank that is a thread: where it leaves replicas
  /// An object that needs the communicator until the object's own end keeps a copy: survive()
  /// refuses to end a world meanwhile. A weak_ptr tells whether the communicator has ended.
  std::shared_ptr<const void> needed = std::make_shared<char>();
  /// How many layers this communicator, or its World's layer_communicator(), synchronizes: their
  /// messages lie on the host, so a step with them cannot be recorded (core/gpu/graph.h).
  std::shared_ptr<int> layers = std::make_shared<int>(0);

  int in_job(int rank) const { return ranks_in_job.empty() ? rank : ranks_in_job[index(rank)]; }
  int known_as(int rank) const {
    return survival ? survival->launcher_numbers[index(in_job(rank))] : in_job(rank);
  }
  /// For Error::blame.
  Blame blame(int rank, Fault fault) const { return {{in_job(rank)}, fault}; }
  /// Throws UsageError in a job that goes on without lost ranks, which `what` cannot, because of
  /// `why`.
  void refuse_if_ranks_may_be_lost(std::string_view what, std::string_view why) const {
    check<UsageError>(!survival,
                      "[survive] {} cannot go on without a lost rank: {}. Start the job without "
                      "--survive, or leave that out",
                      what, why);
  }
};

}  // namespace lockstep::dist
