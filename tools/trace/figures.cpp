// How the time of steps was spent, and what their buckets could do at best.

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/tools/trace/steps.h"

namespace lockstep::traces {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

using Events = std::vector<const Event*>;

bool is_exposed(const Event& event) {
  return event.category == "call" || event.category == "progress" || event.category == "wait";
}

/// Parts of time, apart and in order.
using Intervals = std::vector<std::pair<double, double>>;

Intervals united(Intervals all) {
  std::ranges::sort(all);
  Intervals result;
  for (const auto& [begin, end] : all) {
    if (result.empty() || begin > result.back().second)
      result.emplace_back(begin, end);
    else
      result.back().second = std::max(result.back().second, end);
  }
  return result;
}

double length(const Intervals& intervals) {
  double sum = 0;
  for (const auto& [begin, end] : intervals) sum += end - begin;
  return sum;
}

double common(const Intervals& a, const Intervals& b) {
  double sum = 0;
  for (std::size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    sum += std::max(0.0, std::min(a[i].second, b[k].second) - std::max(a[i].first, b[k].first));
    ++(a[i].second < b[k].second ? i : k);
  }
  return sum;
}

/// Of the events that touch the time from `begin` to `end`: as much of each as lies in it. (The
/// wait in which a verdict was reached ends a moment after it, in the next step.)
RankFigures figures_between(const Events& events, double begin, double end) {
  RankFigures figures{.time = end - begin};
  const std::map<std::string, double*> kinds{{"forward", &figures.forward},
                                             {"backward", &figures.backward},
                                             {"optimizer", &figures.optimizer},
                                             {"load", &figures.load}};
  Intervals exposed, in_flight;
  const auto part = [&](const Event& event) {
    return std::pair(std::max(event.begin, begin), std::min(event.end, end));
  };
  const auto time_of = [&](const Event& event) {
    const auto [from, to] = part(event);
    return std::max(0.0, to - from);
  };
  Events open;  // slices of the thread that contain what follows
  for (const Event* event : events) {
    if (event->end <= begin || event->begin > end) continue;  // an instant at the begin itself
    if (event->category == "collective") in_flight.push_back(part(*event));
    if (event->category == "idle")
      figures.waits[event->arguments.at("rank").get<int>()] += time_of(*event);
    if (event->track != 1 || event->duration() <= 0) continue;
    while (!open.empty() && open.back()->end <= event->begin) open.pop_back();
    if (is_exposed(*event)) exposed.push_back(part(*event));
    // A slice's own time: without those directly within it.
    if (const auto kind = kinds.find(event->category); kind != kinds.end())
      *kind->second += time_of(*event);
    if (!open.empty())
      if (const auto kind = kinds.find(open.back()->category); kind != kinds.end())
        *kind->second -= time_of(*event);
    open.push_back(event);
  }
  exposed = united(std::move(exposed));
  in_flight = united(std::move(in_flight));
  figures.exposed = length(exposed);
  figures.in_flight = length(in_flight);
  figures.hidden = figures.in_flight - common(in_flight, exposed);
  return figures;
}

/// That of the same name, which is at the same place on most ranks.
const BucketTimes* same_bucket(const Step::Rank& rank, const Step::Rank& as, std::size_t k) {
  const std::string& name = as.buckets[k].name;
  if (k < rank.buckets.size() && rank.buckets[k].name == name) return &rank.buckets[k];
  const auto found = std::ranges::find(rank.buckets, name, &BucketTimes::name);
  return found == rank.buckets.end() ? nullptr : &*found;
}

}  // namespace

// Most events touch one part, so this takes one pass.
std::vector<Events> events_of_parts(const RankTrace& trace, const std::vector<double>& ends) {
  std::vector<Events> parts(ends.size());
  for (const Event& event : trace.events) {
    const auto first = std::ranges::lower_bound(ends, event.begin) - ends.begin();
    for (auto k = static_cast<std::size_t>(first); k < ends.size(); ++k) {
      if (k > static_cast<std::size_t>(first) && event.end <= ends[k - 1]) break;
      parts[k].push_back(&event);
    }
  }
  return parts;
}

std::vector<RankFigures> figures_of(const std::vector<RankTrace>& traces,
                                    const std::vector<Step>& steps) {
  std::vector<RankFigures> all;
  for (std::size_t r = 0; r < traces.size(); ++r) {
    const double begin = steps.front().ranks[r].begin, end = steps.back().ranks[r].end;
    all.push_back(figures_between(events_of_parts(traces[r], {begin, end})[1], begin, end));
  }
  return all;
}

std::vector<RankFigures> figures_by_step(const std::vector<RankTrace>& traces,
                                         const std::vector<Step>& steps, std::size_t place) {
  std::vector<double> ends = {steps.front().ranks[place].begin};
  for (const Step& step : steps) ends.push_back(step.ranks[place].end);
  const std::vector<Events> parts = events_of_parts(traces[place], ends);
  std::vector<RankFigures> all;
  for (std::size_t k = 1; k < ends.size(); ++k)
    all.push_back(figures_between(parts[k], ends[k - 1], ends[k]));
  return all;
}

std::map<std::string, double> bucket_costs(const std::vector<Step>& steps) {
  std::map<std::string, double> cost;
  for (const Step& step : steps)
    for (std::size_t k = 0; k < step.ranks[0].buckets.size(); ++k) {
      double begun = -infinity, arrived = begun;
      for (const Step::Rank& rank : step.ranks)
        if (const BucketTimes* its = same_bucket(rank, step.ranks[0], k)) {
          begun = std::max(begun, rank.backward_begins + its->begun);
          arrived = std::max(arrived, rank.backward_begins + its->arrived);
        }
      double& least = cost.try_emplace(step.ranks[0].buckets[k].name, infinity).first->second;
      if (std::isfinite(arrived - begun)) least = std::min(least, std::max(0.0, arrived - begun));
    }
  return cost;
}

double ideal_exposed(const Step& step, const std::map<std::string, double>& cost) {
  double backward_ends = -infinity, arrived = -infinity;
  for (const Step::Rank& rank : step.ranks)
    backward_ends = std::max(backward_ends, rank.backward_ends);
  for (std::size_t k = 0; k < step.ranks[0].buckets.size(); ++k) {
    double ready = arrived;
    for (const Step::Rank& rank : step.ranks)
      if (const BucketTimes* its = same_bucket(rank, step.ranks[0], k))
        ready = std::max(ready, rank.backward_begins + its->ready);
    arrived = ready + cost.at(step.ranks[0].buckets[k].name);
  }
  return std::max(0.0, arrived - backward_ends);
}

}  // namespace lockstep::traces
