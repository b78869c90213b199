#pragma once
/// How a rank of a job that survives talks with its launcher, and what it does about a loss. Of
/// World::join and survive(). Processes have one over a file and a pipe
/// (rendezvous/survival/generation.h); simulated ranks have another.
///
/// Thread-safety: a link belongs to one rank.

#include <memory>

#include "lockstep/core/error.h"
#include "lockstep/dist/collectives/fabric.h"
#include "lockstep/dist/rendezvous/events/rank_event.h"
#include "lockstep/dist/rendezvous/survival/generation.h"

namespace lockstep::dist {

class LauncherLink {
 public:
  virtual ~LauncherLink() = default;

  virtual int rank() const = 0;  ///< this one's number, as the launcher counts
  /// The newest generation that the launcher has published.
  virtual Generation newest() = 0;
  virtual void tell(const RankEvent& event) noexcept = 0;
  virtual Seconds now() const = 0;
  virtual void pause() = 0;  ///< for a moment
  /// The fabric of a generation that this rank is in. Blocks until all of its members have come;
  /// throws CommError if one does not, or if a newer generation begins.
  virtual std::shared_ptr<Fabric> meet(const Generation& generation) = 0;
};

/// The newest generation, once this rank is in it: a rank that was started later asks to be let in.
/// Throws CommError if that takes a minute.
Generation let_in(LauncherLink& link);

/// Waits until the launcher has published a generation after `number`, for five seconds at most.
/// Returns whether it has.
bool newer_than(LauncherLink& link, int number);

/// Whom `error` blames by a number of this generation's world, it then blames by the number that
/// the launcher gave it: for those outside.
void blame_by_launcher_number(Error& error, const Generation& generation);

/// If `error` blames a rank of this generation, tells the launcher. Ranks have the numbers of this
/// world; `own` is the rank that says so.
void suspect_blamed(LauncherLink& link, const CommError& error, const Generation& generation,
                    int own);

}  // namespace lockstep::dist
