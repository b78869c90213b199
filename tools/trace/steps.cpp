#include "lockstep/tools/trace/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep::traces {
namespace {

constexpr double never = std::numeric_limits<double>::quiet_NaN();

using Events = std::vector<const Event*>;

/// When the collective of each bucket was in flight: the first of its name since the launch.
void find_collectives(const Events& events, std::vector<BucketTimes>& buckets) {
  std::multimap<std::string_view, BucketTimes*> by_name;
  for (BucketTimes& bucket : buckets) by_name.emplace(bucket.name, &bucket);
  for (const Event* event : events) {
    if (event->category != "collective") continue;
    const auto [first, last] = by_name.equal_range(event->name);
    const auto found = std::find_if(first, last, [&](const auto& entry) {
      return event->begin >= entry.second->launched && std::isnan(entry.second->begun);
    });
    if (found == last) continue;
    found->second->begun = event->begin;
    found->second->arrived = event->end;
    found->second->sequence = event->arguments.at("sequence");
  }
}

/// From one verdict of a rank to the next, with the events that begin in that time.
Step::Rank rank_step(const Events& events, double begin, double end) {
  Step::Rank step{.begin = begin, .end = end, .backward_begins = never, .backward_ends = never};
  std::map<std::int64_t, double> ready;
  for (const Event* event : events) {
    if (event->category == "backward") {
      if (!(step.backward_begins <= event->begin)) step.backward_begins = event->begin;
      if (!(step.backward_ends >= event->end)) step.backward_ends = event->end;
    } else if (event->category == "ready" && event->arguments.at("pending") == 0) {
      ready[event->arguments.at("bucket")] = event->begin;
    } else if (event->category == "launched") {
      const std::int64_t bucket = event->arguments.at("bucket");
      step.buckets.push_back({.name = event->name,
                              .bytes = event->arguments.at("bytes"),
                              .ready = ready.contains(bucket) ? ready[bucket] : event->begin,
                              .launched = event->begin,
                              .begun = never,
                              .arrived = never});
    }
  }
  if (std::isnan(step.backward_begins)) step.backward_begins = step.backward_ends = end;
  find_collectives(events, step.buckets);
  for (BucketTimes& bucket : step.buckets)
    for (double* time : {&bucket.ready, &bucket.launched, &bucket.begun, &bucket.arrived})
      *time -= step.backward_begins;
  return step;
}

/// The synchronizations of one rank.
struct Synchronizations {
  std::vector<std::string> verdicts{};
  std::vector<Step::Rank> parts{};              // each with the time since the verdict before it
  std::map<std::string, std::size_t> places{};  // by what is the same on all ranks
};

// Ranks compare the calls of a communicator: a bucket's collective has one number on all of them.
// Where collectives are not traced (on GPUs), the occurrences of the same names are counted.
std::string identity(const std::vector<BucketTimes>& buckets) {
  std::string text;
  for (const BucketTimes& bucket : buckets)
    text += fmt::format("{} #{}\n", bucket.name, bucket.sequence);
  return text;
}

Synchronizations synchronizations(const RankTrace& trace) {
  Synchronizations found;
  std::vector<double> ends;
  for (const Event& event : trace.events) {
    if (event.category != "verdict") continue;
    found.verdicts.push_back(event.name);
    ends.push_back(event.begin);
  }
  // In virtual time what follows a verdict may begin at the same moment.
  std::vector<Events> parts(ends.size() + 1);
  for (const Event& event : trace.events)
    parts[static_cast<std::size_t>(std::ranges::upper_bound(ends, event.begin) - ends.begin())]
        .push_back(&event);
  double begin = -std::numeric_limits<double>::infinity();
  std::map<std::string, int> occurrences;
  for (std::size_t k = 0; k < ends.size(); begin = ends[k++]) {
    found.parts.push_back(rank_step(parts[k], begin, ends[k]));
    const std::string name = identity(found.parts.back().buckets);
    found.places[fmt::format("{}{}", name, occurrences[name]++)] = k;
  }
  return found;
}

using Places = std::vector<std::size_t>;  // of one synchronization, by rank

/// Those that all ranks have, in an order that all of them have.
std::vector<Places> in_common(const std::vector<Synchronizations>& ranks) {
  std::vector<Places> all, ordered;
  for (const auto& [identity, place] : ranks.at(0).places) {
    Places places;
    for (const Synchronizations& rank : ranks)
      if (const auto found = rank.places.find(identity); found != rank.places.end())
        places.push_back(found->second);
    if (places.size() == ranks.size()) all.push_back(std::move(places));
  }
  std::ranges::sort(all);
  for (Places& places : all)
    if (ordered.empty() || std::ranges::equal(ordered.back(), places, std::less()))
      ordered.push_back(std::move(places));
  return ordered;
}

}  // namespace

std::vector<Step> steps_of(const std::vector<RankTrace>& traces) {
  std::vector<Synchronizations> ranks;
  for (const RankTrace& trace : traces) ranks.push_back(synchronizations(trace));
  const std::vector<Places> common = in_common(ranks);
  check<DataError>(common.size() > 1,
                   "[trace] there are {} synchronized steps that all ranks have, at least 2 are "
                   "needed",
                   common.size());
  std::vector<Step> steps;
  for (std::size_t k = 1; k < common.size(); ++k) {
    Step step{.verdict = ranks[0].verdicts[common[k][0]], .ranks = {}};
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      step.ranks.push_back(std::move(ranks[r].parts[common[k][r]]));
      step.ranks.back().begin = ranks[r].parts[common[k - 1][r]].end;
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

}  // namespace lockstep::traces
