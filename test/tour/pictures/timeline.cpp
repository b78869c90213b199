// Two ranks in a simulated world train a model of five layers. What is drawn is what their traces
// say of one step.

#include <algorithm>

#include "lockstep/samples/common/simulated.h"
#include "lockstep/tools/trace/steps.h"
#include "tour/pictures/pictures.h"
#include "tour/pictures/svg.h"

namespace lockstep::test {
namespace {

constexpr double axis = 96, whole_width = 860, lane = 20;

/// The class and the text of a slice of the thread; later ones are drawn over earlier ones.
const std::vector<std::pair<const char*, const char*>> kinds = {
    {"forward", "forward"}, {"backward", "backward"}, {"optimizer", "optimizer"},
    {"call", "progress"},   {"progress", "progress"}, {"wait", "progress"},
    {"idle", "wait"}};

void legend(Svg& svg, double y) {
  double x = axis;
  for (const auto& [kind, text] :
       {std::pair("forward", "forward"), std::pair("backward", "backward"),
        std::pair("progress", "moves bytes"), std::pair("wait", "waits"),
        std::pair("optimizer", "optimizer"), std::pair("queue", "bucket waits for its turn"),
        std::pair("bucket", "bucket in flight")}) {
    svg.box(x, y - 9, 11, 11, kind);
    svg.text(x + 16, y, text, "start", "s");
    x += 34 + 6.2 * static_cast<double>(std::string_view(text).size());
  }
}

}  // namespace

std::string timeline_picture() {
  const auto traces = samples::run({.layers = 5});
  const traces::Step step = traces::steps_of(traces).at(1);
  double begin = step.ranks[0].begin, end = step.ranks[0].end;
  std::size_t lanes = 0;
  for (const traces::Step::Rank& rank : step.ranks) {
    begin = std::min(begin, rank.begin);
    end = std::max(end, rank.end);
    lanes += rank.buckets.size() + 1;
  }
  const auto x_of = [&](double time) {
    return axis + (whole_width - axis - 12) * (time - begin) / (end - begin);
  };
  Svg svg(whole_width, 52 + lane * static_cast<double>(lanes) + 18,
          "One step of two ranks: buckets travel while backward runs");
  double y = 14;
  for (std::size_t r = 0; r < traces.size(); ++r) {
    const traces::Step::Rank& rank = step.ranks[r];
    svg.text(8, y + 13, fmt::format("rank {}", r), "start", "t b");
    for (const auto& [category, kind] : kinds)
      for (const traces::Event& event : traces[r].events)
        if (event.track == 1 && event.category == category && event.end > rank.begin &&
            event.begin < rank.end && event.duration() > 0) {
          const double from = x_of(std::max(event.begin, begin)), to = x_of(event.end);
          svg.box(from, y, std::max(1.0, to - from - 1), lane - 4, kind);
        }
    y += lane;
    for (std::size_t k = 0; k < rank.buckets.size(); ++k, y += lane) {
      const traces::BucketTimes& bucket = rank.buckets[k];
      const double ready = x_of(rank.backward_begins + bucket.ready),
                   begun = x_of(rank.backward_begins + bucket.begun),
                   arrived = x_of(rank.backward_begins + bucket.arrived);
      svg.text(20, y + 12, bucket.name, "start", "s");
      svg.box(ready, y, std::max(1.0, begun - ready), lane - 6, "queue");
      svg.box(begun, y, std::max(2.0, arrived - begun), lane - 6, "bucket");
    }
    y += 8;
  }
  svg.line(axis, y, whole_width - 12, y);
  svg.text(whole_width - 12, y + 14, fmt::format("{:.0f} virtual ms", (end - begin) / 1e3), "end",
           "s");
  legend(svg, y + 30);
  return svg.str();
}

}  // namespace lockstep::test
