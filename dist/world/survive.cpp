#include "lockstep/dist/world/survive.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/text/number.h"
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

// "rank 2 hangs": {2, "hangs"}; of several, "ranks 2, 3 are missing", the first: {2, "is missing"}.
// The next generation finds the second.
std::optional<Blame> blamed(const Error& error) {
  if (!error.culprit) return {};
  std::string_view text = *error.culprit;
  const bool several = text.starts_with("ranks ");
  if (!several && !text.starts_with("rank ")) return {};
  text.remove_prefix(text.find(' ') + 1);
  int rank = 0;
  const auto number = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (number.ec != std::errc{}) return {};
  const std::size_t verb = several ? text.find(" are ") : std::string_view::npos;
  if (verb != text.npos) return Blame{rank, fmt::format("is {}", text.substr(verb + 5))};
  text.remove_prefix(static_cast<std::size_t>(number.ptr - text.data()));
  return Blame{rank, std::string(text.substr(text.empty() ? 0 : 1))};
}

// A lost rank ends the world, and nothing may be left that uses it.
void check_nobody_needs(const World& world) {
  check<StateError>(world.communicator().life().use_count() == 1,
                    "[survive] a DistributedDataParallel that was made outside of the body needs "
                    "this world, which may end before it: make it in the body");
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

void dist::blame_by_launcher_number(Error& error, const Generation& generation) {
  if (!blamed(error)) return;
  const std::string& text = *error.culprit;
  const std::size_t begin = text.find(' ') + 1;
  const std::size_t end = std::min(text.size(), text.find_first_not_of("0123456789, ", begin));
  std::istringstream numbers = classic_stream(text.substr(begin, end - begin));
  std::vector<int> known;
  char comma = ',';
  for (int rank = 0; comma == ',' && numbers >> rank; numbers >> comma) {
    if (rank < 0 || index(rank) >= generation.members.size()) return;
    known.push_back(generation.members[index(rank)]);
    comma = ' ';
  }
  error.culprit = std::make_shared<const std::string>(
      fmt::format("{}{} {}", text.substr(0, begin), fmt::join(known, ", "), text.substr(end)));
}

void survive(World& world, const std::function<void(World&)>& body, const SurviveOptions& options) {
  const std::shared_ptr<dist::LauncherLink> link = world.launcher_link();
  if (!link) return body(world);
  link->tell_survives();
  if (options.most_ranks > 0) link->tell_most_ranks(options.most_ranks);
  while (true) {
    check_nobody_needs(world);
    const int before = world.generation();
    const dist::Generation generation{before, world.members()};
    const std::shared_ptr<dist::Survival> survival = world.communicator().survival();
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
