// How a launcher finds a rank that hangs when no other one waits for it: others have ended their
// World, and this one neither ends its own nor tells that it is at work (core/system/progress.h). A
// rank that is stopped or loops tells nothing. A rank that works on is left alone.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "lockstep/launch/launcher.h"

namespace lockstep::launch {

using dist::Seconds;

namespace {
/// Beyond the timeout: a rank that does wait for it reports first, because it says where.
constexpr Seconds courtesy{2};
}  // namespace

void Launcher::take_world(std::size_t place, const RankEvent& event) {
  RankOutcome& outcome = outcomes_[place];
  Rank& rank = ranks_[place];
  if (event.kind == RankEvent::Kind::works) return rank.silence.restart();
  outcome.in_world = event.kind == RankEvent::Kind::world_begins;
  outcome.parted = !outcome.in_world;
  rank.timeout = event.seconds;
}

// Whether a rank but this one has ended its World, or itself, in peace.
bool Launcher::others_parted(std::size_t place) const {
  if (nodes_.others_parted()) return true;
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (r != place && (outcomes_[r].parted || (ranks_[r].ended && outcomes_[r].ended_well())))
      return true;
  return false;
}

void Launcher::look_for_silent() {
  if (!next_look_.passed()) return;
  next_look_ = dist::Deadline(Seconds(1));
  nodes_.set_parted(others_parted(ranks_.size()));
  if (ends() || nodes_.stopping()) return;
  const Seconds now = std::chrono::steady_clock::now().time_since_epoch();
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    const bool told_to_tell = outcomes_[r].in_world && rank.timeout > 0;
    if (rank.ended || rank.hung || !told_to_tell || !others_parted(r))
      rank.silence.restart();
    else if (rank.silence.look(now) > Seconds(rank.timeout) + courtesy)
      end_silent(r);
  }
}

// In a job that survives the rank may be lost: node 0 decides.
void Launcher::end_silent(std::size_t place) {
  const int number = job_.plan().number(static_cast<std::ptrdiff_t>(place));
  if (job_.plan().respawn) return hear(dist::suspicion(generation_, {{number}, Fault::hangs}));
  ranks_[place].hung = true;
  kill(-ranks_[place].process, SIGKILL);
}

RankOutcome Launcher::hung_outcome(std::size_t place) const {
  const int number = job_.plan().number(static_cast<std::ptrdiff_t>(place));
  RankOutcome outcome{.order = outcomes_[place].order, .exit_code = 1};
  outcome.record = {
      .message = fmt::format("[launch] others have ended their World, and it neither ends its own "
                             "nor is at work: for {:g} s it was stopped, or has looped",
                             ranks_[place].timeout),
      .blame = {{number}, Fault::hangs}};
  return outcome;
}

}  // namespace lockstep::launch
