#include "lockstep/dist/world/survive.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <utility>

#include "lockstep/dist/world/launcher_link.h"

namespace lockstep {

namespace {

// The launcher hears of a death within milliseconds; a rank that others suspect is killed at once.
constexpr dist::Seconds patience{5};
// The launcher lets a rank in at once.
constexpr dist::Seconds longest_entry{60};

// A lost rank ends the world, and nothing may be left that uses it.
void check_nobody_needs(const World& world) {
  check<StateError>(world.communicator().membership().needed.use_count() == 1,
                    "[survive] a DistributedDataParallel that was made outside of the body needs "
                    "this world, which may end before it: make it in the body");
}

}  // namespace

dist::Generation dist::let_in(LauncherLink& link) {
  Generation generation = link.newest();
  if (generation.has(link.rank())) return generation;
  link.tell({RankEvent::Kind::ready});
  const Seconds end = link.now() + longest_entry;
  while (!(generation = link.newest()).has(link.rank())) {
    check<CommError>(link.now() < end, "[survive] rank {} was not let in among the ranks {}",
                     link.rank(), fmt::join(generation.members, ", "));
    link.pause();
  }
  return generation;
}

bool dist::newer_than(LauncherLink& link, int number) {
  for (const Seconds end = link.now() + patience; link.newest().number <= number; link.pause())
    if (link.now() >= end) return false;
  return true;
}

// Of several the first: the next generation finds the second.
void dist::suspect_blamed(LauncherLink& link, const CommError& error, const Generation& generation,
                          int own) {
  // An echo blames a rank that is gone: the launcher sees its end itself.
  if (!error.blame || dynamic_cast<const PeerError*>(&error)) return;
  const int rank = error.blame->ranks.front();
  if (rank == own || rank < 0 || index(rank) >= generation.members.size()) return;
  const auto& [ranks, fault, detail] = *error.blame;
  link.tell(suspicion(generation.number, {{generation.members[index(rank)]}, fault, detail}));
}

void dist::blame_by_launcher_number(Error& error, const Generation& generation) {
  if (!error.blame) return;
  Blame blame = *error.blame;
  for (int& rank : blame.ranks) {
    if (rank < 0 || index(rank) >= generation.members.size()) return;
    rank = generation.members[index(rank)];
  }
  error.blame = std::make_shared<const Blame>(std::move(blame));
}

void survive(World& world, const std::function<void(World&)>& body, const SurviveOptions& options) {
  const std::shared_ptr<dist::LauncherLink> link = world.launcher_link();
  if (!link) return body(world);
  using enum dist::RankEvent::Kind;
  link->tell({survives});
  if (options.most_ranks > 0) link->tell({.kind = limited, .number = options.most_ranks});
  while (true) {
    check_nobody_needs(world);
    const int before = world.generation();
    const dist::Generation generation{before, world.members()};
    const std::shared_ptr<dist::Survival> survival = world.communicator().membership().survival;
    survival->in_body = survival->marked = true;
    try {
      body(world);
      world.communicator().barrier("survive: the end").wait();
      survival->in_body = false;
      return;
    } catch (CommError& error) {
      dist::suspect_blamed(*link, error, generation, world.rank());
      world.abort(fmt::format("rank {} lost a peer", world.rank()));
      if (!dist::newer_than(*link, before)) {
        dist::blame_by_launcher_number(error, generation);
        throw;
      }
    } catch (Error& error) {
      dist::blame_by_launcher_number(error, generation);
      throw;
    }
    check_nobody_needs(world);
    { const World ended = std::move(world); }  // its connections close before new ones are made
    world = World::join_over(link, before + 1);
  }
}

}  // namespace lockstep
