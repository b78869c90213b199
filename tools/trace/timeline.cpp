#include "lockstep/tools/trace/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/core/error.h"
#include "lockstep/tools/trace/steps.h"

namespace lockstep::traces {
namespace {

/// A line of characters, each of which stands for a part of the time [begin, end).
class Line {
 public:
  Line(double begin, double end, int width)
      : begin_(begin), scale_(width / (end - begin)), text_(static_cast<std::size_t>(width), ' ') {}

  /// At least one character, so that nothing is too short to be seen.
  void fill(double from, double to, char with) {
    const std::size_t first = at(from), last = std::max(first + 1, at(to));
    for (std::size_t i = first; i < last && i < text_.size(); ++i) text_[i] = with;
  }
  const std::string& text() const { return text_; }

 private:
  std::size_t at(double time) const {
    const double place = std::floor((time - begin_) * scale_);
    return static_cast<std::size_t>(std::clamp(place, 0.0, static_cast<double>(text_.size())));
  }

  double begin_, scale_;
  std::string text_;
};

std::size_t of_median_length(const std::vector<Step>& steps) {
  std::vector<std::size_t> order(steps.size());
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = k;
  std::ranges::sort(order, {},
                    [&](std::size_t k) { return steps[k].ranks[0].end - steps[k].ranks[0].begin; });
  return order[order.size() / 2];
}

std::string thread_line(const RankTrace& trace, double begin, double end, int width) {
  Line line(begin, end, width);
  // Later kinds are drawn over earlier ones.
  for (const auto& [category, character] :
       {std::pair("forward", 'f'), std::pair("backward", 'b'), std::pair("optimizer", 'o'),
        std::pair("call", 'm'), std::pair("wait", 'm'), std::pair("progress", 'm'),
        std::pair("idle", 'w')})
    for (const Event& event : trace.events)
      if (event.track == 1 && event.category == category && event.end > begin && event.begin < end)
        line.fill(event.begin, event.end, character);
  return line.text();
}

std::string bucket_line(const BucketTimes& bucket, double backward, double begin, double end,
                        int width) {
  Line line(begin, end, width);
  line.fill(backward + bucket.ready, backward + bucket.begun, '-');
  if (!std::isnan(bucket.begun)) line.fill(backward + bucket.begun, backward + bucket.arrived, '=');
  line.fill(backward + bucket.ready, backward + bucket.ready, 'r');
  return line.text();
}

}  // namespace

std::string timeline(const std::vector<RankTrace>& traces, int number, int width) {
  const std::vector<Step> steps = steps_of(traces);
  check<UsageError>(number >= 0 && static_cast<std::size_t>(number) <= steps.size(),
                    "[trace] there is no step {}: they are 1..{}", number, steps.size());
  const std::size_t chosen =
      number > 0 ? static_cast<std::size_t>(number) - 1 : of_median_length(steps);
  const Step& step = steps[chosen];
  double begin = step.ranks[0].backward_begins, end = step.ranks[0].end;
  for (const Step::Rank& rank : step.ranks) {
    begin = std::min(begin, rank.backward_begins);
    end = std::max(end, rank.end);
  }
  std::string text =
      fmt::format("step {} of {}: from the begin of backward to the verdict, {:.0f} us\n",
                  chosen + 1, steps.size(), end - begin);
  for (std::size_t r = 0; r < traces.size(); ++r) {
    const Step::Rank& rank = step.ranks[r];
    text += fmt::format("rank {:<7}|{}|\n", traces[r].rank,
                        thread_line(traces[r], begin, end, width - 14));
    for (std::size_t k = 0; k < rank.buckets.size(); ++k)
      text +=
          fmt::format("  bucket {:<3}|{}|\n", k,
                      bucket_line(rank.buckets[k], rank.backward_begins, begin, end, width - 14));
  }
  return text +
         "f forward  b backward  o optimizer  m moves bytes  w waits  blank: something else\n"
         "r ready  - waits for its turn  = in flight (r alone: for less than a column)\n";
}

}  // namespace lockstep::traces
