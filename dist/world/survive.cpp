#include "lockstep/dist/world/survive.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/rendezvous/socket.h"
#include "lockstep/dist/rendezvous/survival/generation.h"
#include "lockstep/dist/world/generations.h"

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

dist::Generation dist::generation_with(int descriptor, int rank) {
  Generation generation = newest_generation(descriptor);
  if (generation.has(rank)) return generation;
  tell_ready();
  const Deadline deadline(longest_entry);
  while (!(generation = newest_generation(descriptor)).has(rank)) {
    check<CommError>(!deadline.passed(), "[survive] rank {} was not let in among the ranks {}",
                     rank, fmt::join(generation.members, ", "));
    std::this_thread::sleep_for(Seconds(0.002));
  }
  return generation;
}

int dist::await_generation(int descriptor, int after) {
  for (const Deadline deadline(patience);;) {
    const int newest = newest_generation(descriptor).number;
    if (newest > after || deadline.passed()) return newest;
    std::this_thread::sleep_for(Seconds(0.002));
  }
}

void dist::suspect_blamed(const CommError& error, const Generation& generation, int own) {
  const auto blame = blamed(error);
  // An echo blames a rank that is gone: the launcher sees its end itself.
  if (!blame || dynamic_cast<const PeerError*>(&error) || blame->rank == own) return;
  const auto& [rank, why] = *blame;
  if (rank < 0 || index(rank) >= generation.members.size()) return;
  suspect({generation.number, generation.members[index(rank)], why});
}

void survive(World& world, const std::function<void(World&)>& body) {
  const auto launch = dist::read_environment();
  const int descriptor = launch ? launch->survive_descriptor : -1;
  const auto options = world.joined_with();
  if (descriptor < 0 || !options) return body(world);
  while (true) {
    try {
      body(world);
      world.communicator().barrier("survive: the end").wait();
      return;
    } catch (const CommError& error) {
      const int before = world.generation();
      dist::suspect_blamed(error, {before, world.members()}, world.rank());
      world.abort(fmt::format("rank {} lost a peer", world.rank()));
      if (dist::await_generation(descriptor, before) <= before) throw;
    }
    const int after = world.generation();
    { const World ended = std::move(world); }  // its connections close before new ones are made
    world = World::join_generation(*options, after + 1);
  }
}

}  // namespace lockstep
