#include "lockstep/tools/trace/steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/core/error.h"

namespace lockstep::traces {
namespace {

constexpr double never = std::numeric_limits<double>::quiet_NaN();

std::vector<const Event*> verdicts(const RankTrace& trace) {
  std::vector<const Event*> found;
  for (const Event& event : trace.events)
    if (event.category == "verdict") found.push_back(&event);
  return found;
}

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

Step::Rank rank_step(const RankTrace& trace, double begin, double end) {
  Step::Rank step{.begin = begin, .end = end, .backward_begins = never, .backward_ends = never};
  std::map<std::int64_t, std::size_t> place;  // of a bucket's index in step.buckets
  std::map<std::int64_t, double> ready;
  for (const Event& event : trace.events) {
    if (event.begin <= begin || event.begin > end) continue;
    if (event.category == "backward") {
      if (!(step.backward_begins <= event.begin)) step.backward_begins = event.begin;
      if (!(step.backward_ends >= event.end)) step.backward_ends = event.end;
    } else if (event.category == "ready" && event.arguments.at("pending") == 0) {
      ready[event.arguments.at("bucket")] = event.begin;
    } else if (event.category == "launched") {
      const std::int64_t bucket = event.arguments.at("bucket");
      place[bucket] = step.buckets.size();
      step.buckets.push_back({.name = event.name,
                              .bytes = event.arguments.at("bytes"),
                              .ready = ready.contains(bucket) ? ready[bucket] : event.begin,
                              .launched = event.begin,
                              .begun = never,
                              .arrived = never});
    }
  }
  if (std::isnan(step.backward_begins)) step.backward_begins = step.backward_ends = end;
  for (const Event& event : trace.events) {
    if (event.category != "collective" || event.end <= begin || event.begin > end) continue;
    for (BucketTimes& bucket : step.buckets)
      if (event.name == bucket.name && event.begin >= bucket.launched && std::isnan(bucket.begun)) {
        bucket.begun = event.begin;
        bucket.arrived = event.end;
        break;
      }
  }
  for (BucketTimes& bucket : step.buckets)
    for (double* time : {&bucket.ready, &bucket.launched, &bucket.begun, &bucket.arrived})
      *time -= step.backward_begins;
  return step;
}

}  // namespace

std::vector<Step> steps_of(const std::vector<RankTrace>& traces) {
  std::vector<std::vector<const Event*>> ends;
  for (const RankTrace& trace : traces) ends.push_back(verdicts(trace));
  std::size_t most = ends[0].size();
  for (const auto& end : ends) most = std::min(most, end.size());  // a rank may have dropped some
  check<DataError>(most > 1, "[trace] there are {} synchronized steps, at least 2 are needed",
                   most);
  std::vector<Step> steps;
  for (std::size_t k = 1; k < most; ++k) {
    Step step{.verdict = ends[0][k]->name, .ranks = {}};
    for (std::size_t r = 0; r < traces.size(); ++r)
      step.ranks.push_back(rank_step(traces[r], ends[r][k - 1]->begin, ends[r][k]->begin));
    steps.push_back(std::move(step));
  }
  return steps;
}

RankFigures figures_of(const RankTrace& trace) {
  const std::vector<const Event*> ends = verdicts(trace);
  check<DataError>(ends.size() > 1,
                   "[trace] rank {} has {} synchronized steps, at least 2 are needed", trace.rank,
                   ends.size());
  return figures_between(trace, ends.front()->begin, ends.back()->begin);
}

RankFigures figures_between(const RankTrace& trace, double begin, double end) {
  RankFigures figures{.time = end - begin};
  const std::map<std::string, double*> kinds{{"forward", &figures.forward},
                                             {"backward", &figures.backward},
                                             {"optimizer", &figures.optimizer},
                                             {"load", &figures.load}};
  Intervals exposed, in_flight;
  std::vector<const Event*> open;  // slices of the thread that contain what follows
  for (const Event& event : trace.events) {
    if (event.end <= begin || event.begin > end) continue;
    if (event.category == "collective") in_flight.emplace_back(event.begin, event.end);
    if (event.category == "idle")
      figures.waits[event.arguments.at("rank").get<int>()] += event.duration();
    if (event.track != 1 || event.duration() <= 0) continue;
    while (!open.empty() && open.back()->end <= event.begin) open.pop_back();
    if (is_exposed(event)) exposed.emplace_back(event.begin, event.end);
    // A slice's own time: without those directly within it.
    if (const auto kind = kinds.find(event.category); kind != kinds.end())
      *kind->second += event.duration();
    if (!open.empty())
      if (const auto kind = kinds.find(open.back()->category); kind != kinds.end())
        *kind->second -= event.duration();
    open.push_back(&event);
  }
  exposed = united(std::move(exposed));
  in_flight = united(std::move(in_flight));
  figures.exposed = length(exposed);
  figures.in_flight = length(in_flight);
  figures.hidden = figures.in_flight - common(in_flight, exposed);
  return figures;
}

std::vector<double> bucket_costs(const std::vector<Step>& steps) {
  std::vector<double> cost;
  for (const Step& step : steps) {
    const std::size_t buckets = step.ranks[0].buckets.size();
    cost.resize(std::max(cost.size(), buckets), std::numeric_limits<double>::infinity());
    for (std::size_t k = 0; k < buckets; ++k) {
      double begun = -std::numeric_limits<double>::infinity(), arrived = begun;
      for (const Step::Rank& rank : step.ranks) {
        if (k >= rank.buckets.size()) continue;
        begun = std::max(begun, rank.backward_begins + rank.buckets[k].begun);
        arrived = std::max(arrived, rank.backward_begins + rank.buckets[k].arrived);
      }
      if (std::isfinite(arrived - begun))
        cost[k] = std::min(cost[k], std::max(0.0, arrived - begun));
    }
  }
  return cost;
}

double ideal_exposed(const Step& step, const std::vector<double>& cost) {
  double backward_ends = -std::numeric_limits<double>::infinity(), arrived = backward_ends;
  for (const Step::Rank& rank : step.ranks)
    backward_ends = std::max(backward_ends, rank.backward_ends);
  for (std::size_t k = 0; k < step.ranks[0].buckets.size() && k < cost.size(); ++k) {
    double ready = arrived;
    for (const Step::Rank& rank : step.ranks)
      if (k < rank.buckets.size())
        ready = std::max(ready, rank.backward_begins + rank.buckets[k].ready);
    arrived = ready + cost[k];
  }
  return std::max(0.0, arrived - backward_ends);
}

}  // namespace lockstep::traces
