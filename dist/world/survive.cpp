#include "lockstep/dist/world/survive.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/dist/world/launcher_link.h"

namespace lockstep {

namespace {

// The launcher hears of a death within milliseconds; a rank that others suspect is killed at once.
constexpr dist::Seconds patience{5};
// The launcher lets a rank in at once.
constexpr dist::Seconds longest_entry{60};

struct Blame {
  int rank;
  std::string why;
};

// "rank 2 hangs": {2, "hangs"}. Nothing if nobody, or several, are blamed.
std::optional<Blame> blamed(const Error& error) {
  constexpr std::string_view word = "rank ";
  if (!error.culprit || !error.culprit->starts_with(word)) return {};
  const char* const end = error.culprit->data() + error.culprit->size();
  int rank = 0;
  const auto number = std::from_chars(error.culprit->data() + word.size(), end, rank);
  if (number.ec != std::errc{}) return {};
  return Blame{rank, std::string(number.ptr + (number.ptr != end), end)};
}

}  // namespace

dist::Generation dist::let_in(LauncherLink& link) {
  Generation generation = link.newest();
  if (generation.has(link.rank())) return generation;
  link.tell_ready();
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

void dist::suspect_blamed(LauncherLink& link, const CommError& error, const Generation& generation,
                          int own) {
  const auto blame = blamed(error);
  // An echo blames a rank that is gone: the launcher sees its end itself.
  if (!blame || dynamic_cast<const PeerError*>(&error) || blame->rank == own) return;
  const auto& [rank, why] = *blame;
  if (rank < 0 || index(rank) >= generation.members.size()) return;
  link.suspect({generation.number, generation.members[index(rank)], why});
}

void survive(World& world, const std::function<void(World&)>& body) {
  const std::shared_ptr<dist::LauncherLink> link = world.launcher_link();
  if (!link) return body(world);
  while (true) {
    try {
      body(world);
      world.communicator().barrier("survive: the end").wait();
      return;
    } catch (const CommError& error) {
      const int before = world.generation();
      dist::suspect_blamed(*link, error, {before, world.members()}, world.rank());
      world.abort(fmt::format("rank {} lost a peer", world.rank()));
      if (!dist::newer_than(*link, before)) throw;
    }
    const int after = world.generation();
    { const World ended = std::move(world); }  // its connections close before new ones are made
    world = World::join_over(link, after + 1);
  }
}

}  // namespace lockstep
