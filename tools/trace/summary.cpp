// The summary of traces as a text.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/tools/trace/steps.h"

namespace lockstep::traces {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

std::string rank_lines(const std::vector<RankTrace>& traces,
                       const std::vector<RankFigures>& figures, double steps) {
  std::string text = fmt::format(
      "us per step {:>10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>13}\n", "step", "load",
      "forward", "backward", "optim.", "exposed", "other", "in flight", "of it hidden");
  for (std::size_t r = 0; r < traces.size(); ++r) {
    const RankFigures& f = figures[r];
    text += fmt::format(
        "rank {:<6} {:>10.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>9.1f} "
        "{:>12.0f}%\n",
        traces[r].rank, f.time / steps, f.load / steps, f.forward / steps, f.backward / steps,
        f.optimizer / steps, f.exposed / steps, f.other() / steps, f.in_flight / steps,
        percent(f.hidden, f.in_flight));
  }
  return text;
}

std::string wait_lines(const std::vector<RankTrace>& traces,
                       const std::vector<RankFigures>& figures, double steps) {
  std::string text;
  for (std::size_t r = 0; r < traces.size(); ++r)
    for (const auto& [rank, time] : figures[r].waits)
      text += fmt::format("rank {} waits {:.1f} us per step for rank {}\n", traces[r].rank,
                          time / steps, rank);
  return text;
}

/// What a bucket was in all steps. Models that train in turn have buckets of other names.
struct Column {
  std::string name;
  std::int64_t bytes = 0;
  std::vector<double> times[4] = {};

  void add(const BucketTimes& bucket) {
    bytes = bucket.bytes;
    const double values[] = {bucket.ready, bucket.launched, bucket.begun, bucket.arrived};
    for (std::size_t i = 0; i < 4; ++i)
      if (!std::isnan(values[i])) times[i].push_back(values[i]);
  }
};

std::string bucket_lines(const std::string& rank, const std::vector<Step>& steps) {
  std::vector<Column> buckets;  // in the order in which they are met
  std::map<std::string, std::size_t> places;
  std::size_t width = 12;
  for (const Step& step : steps)
    for (const BucketTimes& bucket : step.ranks[0].buckets) {
      const auto [place, is_new] = places.try_emplace(bucket.name, buckets.size());
      if (is_new) buckets.push_back({.name = bucket.name});
      buckets[place->second].add(bucket);
      width = std::max(width, bucket.name.size());
    }
  std::string text = fmt::format(
      "{:<{}} {:>10} {:>10} {:>10} {:>10} {:>10}   (us after backward began; medians)\n", rank,
      width, "bytes", "ready", "launched", "begun", "arrived");
  for (const Column& bucket : buckets)
    text += fmt::format("{:<{}} {:>10} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f}\n", bucket.name,
                        width, bucket.bytes, median(bucket.times[0]), median(bucket.times[1]),
                        median(bucket.times[2]), median(bucket.times[3]));
  return text;
}

/// What the figures leave out.
std::string notes(const std::vector<RankTrace>& traces, std::size_t common) {
  std::string text, counts;
  bool all = true;
  for (const RankTrace& trace : traces) {
    const auto its = std::ranges::count(trace.events, "verdict", &Event::category);
    all = all && static_cast<std::size_t>(its) == common;
    counts += fmt::format("{}rank {} has {}", counts.empty() ? "" : ", ", trace.rank, its);
  }
  if (!all)
    text += fmt::format("The figures are of the {} synchronizations that all ranks have: {}.\n",
                        common, counts);
  if (const std::string missing = missing_ranks(traces); !missing.empty())
    text += fmt::format("{} of {} left no trace of this run: the figures are of the others.\n",
                        missing, traces[0].world);
  for (const RankTrace& trace : traces)
    if (trace.dropped > 0)
      text += fmt::format(
          "rank {}: {} events were not kept: more than TraceOptions::most_events, or of a "
          "communicator or stream beyond the 255th\n",
          trace.rank, trace.dropped);
  return text;
}

}  // namespace

std::string summary(const std::vector<RankTrace>& traces) {
  const std::vector<Step> steps = steps_of(traces);
  const std::vector<RankFigures> figures = figures_of(traces, steps);
  const auto count = static_cast<double>(steps.size());
  std::string text =
      fmt::format("{} rank{}, {} step{} after the first\n\n", traces.size(),
                  traces.size() == 1 ? "" : "s", steps.size(), steps.size() == 1 ? "" : "s");
  text += rank_lines(traces, figures, count) + "\n" +
          bucket_lines(fmt::format("rank {}", traces[0].rank), steps) + "\n" +
          wait_lines(traces, figures, count);
  const std::map<std::string, double> cost = bucket_costs(steps);
  std::vector<double> ideal;
  for (const Step& step : steps) ideal.push_back(ideal_exposed(step, cost));
  text += fmt::format(
      "The same buckets, ready at the same times and moved by nobody's thread, would leave {:.1f} "
      "us exposed (median).\n",
      median(ideal));
  text += notes(traces, steps.size() + 1);
  const double uncertainty =
      std::ranges::max_element(traces, {}, &RankTrace::clock_uncertainty)->clock_uncertainty;
  if (uncertainty > 0)
    text += fmt::format(
        "Ranks of one machine share a clock. Those of different machines may be apart by up to "
        "{:.1f} us: closer than that, their times cannot be compared.\n",
        uncertainty);
  return text;
}

}  // namespace lockstep::traces
