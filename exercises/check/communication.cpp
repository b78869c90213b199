// The checks of ring, buckets and ready.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <random>
#include <set>

#include "lockstep/dist/collectives/plan/plan.h"
#include "lockstep/exercises/check/checks.h"

namespace exercise {
namespace {

using Parts = std::vector<std::set<int>>;  // of each part, whose contributions it holds

/// The messages of a step fit together: what one rank sends its neighbour expects.
std::string check_messages(const std::vector<std::vector<RingStep>>& plans, int world,
                           std::size_t s) {
  for (int r = 0; r < world; ++r) {
    const RingStep& mine = plans[static_cast<std::size_t>(r)][s];
    const auto where = [&] { return fmt::format("world {}, rank {}, step {}", world, r, s); };
    const int next = (r + 1) % world, before = (r + world - 1) % world;
    if (mine.to != next || mine.from != before)
      return fmt::format("{}: it sends to {} and receives from {}; its neighbours are {} and {}",
                         where(), mine.to, mine.from, next, before);
    if (std::min(mine.send, mine.receive) < 0 || std::max(mine.send, mine.receive) >= world)
      return fmt::format("{}: it sends part {} and receives part {}; there are 0..{}", where(),
                         mine.send, mine.receive, world - 1);
    const RingStep& theirs = plans[static_cast<std::size_t>(next)][s];
    if (theirs.receive != mine.send)
      return fmt::format("{}: it sends part {}, but rank {} expects part {}", where(), mine.send,
                         next, theirs.receive);
  }
  return "";
}

std::string check_ring_of(int world, const std::vector<std::vector<RingStep>>& plans) {
  const std::size_t steps = plans[0].size();
  std::vector<Parts> held;
  for (int r = 0; r < world; ++r) held.emplace_back(static_cast<std::size_t>(world), std::set{r});
  for (std::size_t s = 0; s < steps; ++s) {
    if (const std::string problem = check_messages(plans, world, s); !problem.empty())
      return problem;
    const std::vector<Parts> sent = held;
    for (int r = 0; r < world; ++r) {
      const RingStep& step = plans[static_cast<std::size_t>(r)][s];
      const auto part = static_cast<std::size_t>(step.receive);
      const std::set<int>& arrives = sent[static_cast<std::size_t>(step.from)][part];
      std::set<int>& here = held[static_cast<std::size_t>(r)][part];
      if (!step.add) here.clear();
      for (const int rank : arrives)
        if (!here.insert(rank).second)
          return fmt::format("world {}, rank {}, step {}: part {} then has rank {} twice", world, r,
                             s, step.receive, rank);
    }
  }
  for (int r = 0; r < world; ++r)
    for (int part = 0; part < world; ++part)
      for (int rank = 0; rank < world; ++rank)
        if (!held[static_cast<std::size_t>(r)][static_cast<std::size_t>(part)].contains(rank))
          return fmt::format("world {}: at the end rank {}'s part {} lacks what rank {} had", world,
                             r, part, rank);
  return "";
}

}  // namespace

std::string check_ring(const std::function<std::vector<RingStep>(int, int)>& ring) {
  if (ring(0, 2).empty()) return not_written;
  for (const int world : {1, 2, 3, 4, 5, 7}) {
    // As many steps as the library's plan has.
    lockstep::dist::Plan plan;
    lockstep::dist::make_plan({.operation = lockstep::dist::Operation::all_reduce,
                               .algorithm = lockstep::dist::Algorithm::ring,
                               .world = world,
                               .count = world},
                              plan);
    const std::size_t steps = world == 1 ? 0 : plan.size();
    std::vector<std::vector<RingStep>> plans;
    for (int r = 0; r < world; ++r) {
      ask(fmt::format("world {}, rank {}", world, r));
      plans.push_back(ring(r, world));
      if (plans.back().size() != steps)
        return fmt::format("world {}, rank {}: {} steps; a ring takes {}", world, r,
                           plans.back().size(), steps);
    }
    if (std::string problem = check_ring_of(world, plans); !problem.empty()) return problem;
  }
  return "";
}

std::string check_buckets(
    const std::function<std::vector<std::vector<int>>(const std::vector<long>&, long)>& buckets) {
  if (buckets({1}, 1).empty()) return not_written;
  std::mt19937 random(1);
  const auto below = [&](long n) { return static_cast<long>(random() % static_cast<unsigned>(n)); };
  for (int drawn = 0; drawn < 300; ++drawn) {
    std::vector<long> bytes(static_cast<std::size_t>(below(9)));
    for (long& size : bytes) size = drawn % 3 == 0 ? 25 : below(150);  // also exactly the cap
    const std::string what = fmt::format("sizes {}, cap 100", bytes);
    ask(what);
    const auto found = buckets(bytes, 100);
    std::vector<std::vector<int>> right;
    long held = 101;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (held + bytes[i] > 100) right.emplace_back(), held = 0;
      right.back().push_back(static_cast<int>(i));
      held += bytes[i];
    }
    for (std::size_t k = 0; k < std::max(right.size(), found.size()); ++k) {
      if (k >= found.size())
        return fmt::format("{}: bucket {} is {}, yours is missing", what, k, right[k]);
      if (k >= right.size()) return fmt::format("{}: there is no bucket {}", what, k);
      if (found[k] != right[k])
        return fmt::format("{}: bucket {} is {}, yours is {}", what, k, right[k], found[k]);
    }
  }
  return "";
}

std::string check_ready(
    const std::function<std::vector<int>(const std::vector<std::vector<int>>&,
                                         const std::vector<int>&)>& launched_after) {
  if (launched_after({{0}}, {0}).empty()) return not_written;
  std::mt19937 random(2);
  const auto below = [&](unsigned n) { return static_cast<int>(random() % n); };
  for (int drawn = 0; drawn < 300; ++drawn) {
    const int parameters = 1 + below(6);
    std::vector<std::vector<int>> buckets{{}};
    for (int p = parameters; p-- > 0;) {
      if (!buckets.back().empty() && below(2) == 0) buckets.emplace_back();
      buckets.back().push_back(p);
    }
    std::vector<int> writes(static_cast<std::size_t>(below(9)));
    for (int& parameter : writes) parameter = below(static_cast<unsigned>(parameters));
    // As a reducer does it: count, and launch what is ready whenever a gradient becomes ready.
    std::vector<int> writes_left(static_cast<std::size_t>(parameters)), right;
    for (const int p : writes) ++writes_left[static_cast<std::size_t>(p)];
    for (std::size_t done = 0; done <= writes.size(); ++done) {
      if (done > 0) --writes_left[static_cast<std::size_t>(writes[done - 1])];
      while (right.size() < buckets.size() &&
             std::ranges::all_of(buckets[right.size()], [&](int p) {
               return writes_left[static_cast<std::size_t>(p)] == 0;
             }))
        right.push_back(static_cast<int>(done));
    }
    const std::string what = fmt::format("buckets {}, writes {}", buckets, writes);
    ask(what);
    const auto found = launched_after(buckets, writes);
    if (found.size() != right.size())
      return fmt::format("{}: {} answers for {} buckets", what, found.size(), right.size());
    for (std::size_t k = 0; k < right.size(); ++k)
      if (found[k] != right[k])
        return fmt::format("{}: bucket {} is launched after {} writes, yours after {}", what, k,
                           right[k], found[k]);
  }
  return "";
}

}  // namespace exercise
