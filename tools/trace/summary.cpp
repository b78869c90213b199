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

std::string rank_lines(const std::vector<RankTrace>& traces, double steps) {
  std::string text =
      fmt::format("us per step {:>10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7}\n", "step", "load",
                  "forward", "backward", "optim.", "exposed", "in flight", "hidden");
  for (const RankTrace& trace : traces) {
    const RankFigures f = figures_of(trace);
    text += fmt::format(
        "rank {:<6} {:>10.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>9.1f} {:>6.0f}%\n",
        trace.rank, f.time / steps, f.load / steps, f.forward / steps, f.backward / steps,
        f.optimizer / steps, f.exposed / steps, f.in_flight / steps,
        percent(f.hidden, f.in_flight));
  }
  return text;
}

std::string wait_lines(const std::vector<RankTrace>& traces, double steps) {
  std::string text;
  for (const RankTrace& trace : traces) {
    const RankFigures f = figures_of(trace);
    for (const auto& [rank, time] : f.waits)
      text += fmt::format("rank {} waits {:.1f} us per step for rank {}\n", trace.rank,
                          time / steps, rank);
  }
  return text;
}

std::string bucket_lines(const std::vector<Step>& steps) {
  std::string text = fmt::format(
      "{:<12} {:>10} {:>10} {:>10} {:>10} {:>10}   (us after backward began; medians)\n", "rank 0",
      "bytes", "ready", "launched", "begun", "arrived");
  std::size_t buckets = 0;
  for (const Step& step : steps) buckets = std::max(buckets, step.ranks[0].buckets.size());
  for (std::size_t k = 0; k < buckets; ++k) {
    std::vector<double> times[4];
    const BucketTimes* one = nullptr;
    for (const Step& step : steps) {
      if (k >= step.ranks[0].buckets.size()) continue;
      one = &step.ranks[0].buckets[k];
      const double values[] = {one->ready, one->launched, one->begun, one->arrived};
      for (std::size_t i = 0; i < 4; ++i)
        if (!std::isnan(values[i])) times[i].push_back(values[i]);
    }
    text += fmt::format("{:<12} {:>10} {:>10.1f} {:>10.1f} {:>10.1f} {:>10.1f}\n", one->name,
                        one->bytes, median(times[0]), median(times[1]), median(times[2]),
                        median(times[3]));
  }
  return text;
}

}  // namespace

std::string summary(const std::vector<RankTrace>& traces) {
  const std::vector<Step> steps = steps_of(traces);
  const auto count = static_cast<double>(steps.size());
  std::string text =
      fmt::format("{} rank{}, {} step{} after the first\n\n", traces.size(),
                  traces.size() == 1 ? "" : "s", steps.size(), steps.size() == 1 ? "" : "s");
  text += rank_lines(traces, count) + "\n" + bucket_lines(steps) + "\n" + wait_lines(traces, count);
  const std::vector<double> cost = bucket_costs(steps);
  std::vector<double> ideal;
  for (const Step& step : steps) ideal.push_back(ideal_exposed(step, cost));
  text += fmt::format(
      "The same buckets, ready at the same times and moved by nobody's thread, would leave {:.1f} "
      "us "
      "exposed (median).\n",
      median(ideal));
  for (const RankTrace& trace : traces)
    if (trace.dropped > 0)
      text += fmt::format("rank {}: {} later events were not kept (TraceOptions::most_events)\n",
                          trace.rank, trace.dropped);
  double uncertainty = 0;
  for (const RankTrace& trace : traces)
    uncertainty = std::max(uncertainty, trace.clock_uncertainty);
  if (uncertainty > 0) text += fmt::format("The ranks' clocks agree to {:.1f} us.\n", uncertainty);
  return text;
}

}  // namespace lockstep::traces
