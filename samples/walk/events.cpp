#include "lockstep/samples/walk/events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lockstep/core/error.h"
#include "lockstep/dist/collectives/operation.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::samples {
namespace {

using traces::Event;
using traces::RankTrace;

/// What happened at one moment on one rank.
struct Happening {
  double time = 0;
  int rank = 0;
  const Event* event = nullptr;
  bool ends = false;  ///< a slice's end, not its begin
  int bucket = -1;    ///< of a collective, and of its steps

  /// At equal times: a step ends before its collective, which ends before the next one begins.
  int order() const {
    constexpr std::string_view begins[] = {"ready",    "launched", "collective", "step",
                                           "backward", "wait",     "verdict",    "optimizer"};
    if (ends) return event->category == "step" ? 0 : 1;
    return 2 + static_cast<int>(std::ranges::find(begins, event->category) - std::begin(begins));
  }
};

/// What a bucket holds on one rank: of each part the bits of the ranks whose contributions it has.
/// A ring of n ranks has n parts.
using Parts = std::vector<unsigned>;

class Story {
 public:
  explicit Story(std::size_t ranks) : ranks_(ranks) {}

  void tell(const Happening& happening);
  std::vector<std::string> lines;

 private:
  void say(const Happening& h, const std::string& what, bool draw = false);
  void step_begins(const Happening& h);
  void step_ends(const Happening& h);
  Parts& held(int bucket, std::size_t rank);
  std::string drawing(int bucket) const;
  int part_of(std::int64_t elements, std::int64_t end) const;

  std::size_t ranks_;
  std::map<std::pair<int, std::size_t>, Parts> held_;  // by bucket and rank
  std::map<int, std::int64_t> elements_;               // by bucket
  std::set<std::size_t> waiting_;                      // ranks at the end of their backward
  std::map<std::size_t, std::pair<int, int>> came_;    // by rank: bucket and part, in its last step
  int shown_ = 0;                                      // the bucket that the drawing is about
};

/// "bucket 2" is 2; any other collective -1.
int bucket_of(const std::string& name) {
  return name.starts_with("bucket ") ? std::stoi(name.substr(7)) : -1;
}

Parts& Story::held(int bucket, std::size_t rank) {
  return held_.try_emplace({bucket, rank}, ranks_, 1U << rank).first->second;
}

std::string Story::drawing(int bucket) const {
  std::string text = fmt::format("{:>22}", fmt::format("bucket {}", bucket));
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const auto found = held_.find({bucket, rank});
    text += "   ";
    for (std::size_t part = 0; part < ranks_; ++part) {
      const unsigned sum = found == held_.end() ? 1U << rank : found->second[part];
      std::string cell;
      for (std::size_t of = 0; of < ranks_; ++of)
        if (sum & 1U << of) cell += std::to_string(of);
      text += fmt::format("|{:<{}}", cell, ranks_);
    }
    text += "|";
  }
  return text;
}

void Story::say(const Happening& h, const std::string& what, bool draw) {
  std::string line = fmt::format("{:8.3f} ms  rank {}  {}", h.time / 1e3, h.rank, what);
  if (draw) line += "\n" + drawing(shown_);
  lines.push_back(std::move(line));
}

/// Which of the parts of a bucket ends at an element.
int Story::part_of(std::int64_t elements, std::int64_t end) const {
  const auto n = static_cast<int>(ranks_);
  for (int part = 0; part < n; ++part)
    if (dist::partition(elements, n, part).end == end) return part;
  fail<DataError>("[walk] no part of {} elements ends at {}", elements, end);
}

// A step sends what came in the step before it: the line of that step has said so. The first step
// sends the rank's own numbers.
void Story::step_begins(const Happening& h) {
  const auto& arguments = h.event->arguments;
  const std::size_t rank = dist::index(h.rank);
  const int part = part_of(elements_.at(h.bucket), arguments.at("send").at(1));
  if (arguments.at("number") == 0) {
    shown_ = h.bucket;
    return say(
        h,
        fmt::format("the ring of bucket {} begins: {} elements in {} parts; part {} goes to "
                    "rank {}",
                    h.bucket, elements_.at(h.bucket), ranks_, part, arguments.at("to").get<int>()),
        true);
  }
  check<DataError>(came_.at(rank) == std::pair(h.bucket, part),
                   "[walk] rank {} sends part {} of bucket {}, which did not come just before",
                   h.rank, part, h.bucket);
}

// The neighbour still holds what it has sent: a ring changes no part between its sending and the
// moment when it comes back, complete.
void Story::step_ends(const Happening& h) {
  const auto& arguments = h.event->arguments;
  const std::size_t rank = dist::index(h.rank);
  const int bucket = h.bucket, from = arguments.at("from");
  const bool adds = arguments.at("into") == "sum";
  const int part = part_of(elements_.at(bucket), arguments.at("receive").at(1));
  const unsigned sent = held(bucket, dist::index(from))[dist::index(part)];
  unsigned& mine = held(bucket, rank)[dist::index(part)];
  mine = (adds ? mine : 0U) | sent;
  came_[rank] = {bucket, part};
  shown_ = bucket;
  const int number = arguments.at("number");
  std::string text = fmt::format("ring of bucket {}, step {}: part {} has come from rank {}, {}",
                                 bucket, number, part, from, adds ? "is added" : "is complete");
  if (number + 1 < 2 * (static_cast<int>(ranks_) - 1))
    text += fmt::format(", goes on to rank {}", arguments.at("to").get<int>());
  say(h, text, true);
}

void Story::tell(const Happening& h) {
  const Event& e = *h.event;
  const std::size_t rank = dist::index(h.rank);
  if (e.category == "backward" && !h.ends) {
    say(h, fmt::format("backward of {} begins", e.name));
  } else if (e.category == "ready") {
    const int bucket = e.arguments.at("bucket"), pending = e.arguments.at("pending");
    say(h, fmt::format("{} is ready: bucket {} {}", e.name, bucket,
                       pending > 0 ? fmt::format("waits for {} more", pending) : "is complete"));
  } else if (e.category == "launched") {
    say(h, fmt::format("{}: its all-reduce is called", e.name));
  } else if (e.category == "collective" && h.bucket >= 0) {
    if (h.ends)
      return say(h, fmt::format("{} has arrived: every part is the sum of all ranks", e.name));
    elements_[h.bucket] = e.arguments.at("elements");
    held(h.bucket, rank);
  } else if (e.category == "step" && h.bucket >= 0) {
    h.ends ? step_ends(h) : step_begins(h);
  } else if (e.category == "wait" && !h.ends && waiting_.insert(rank).second) {
    say(h, "backward has ended: the thread waits for the buckets");
  } else if (e.category == "verdict") {
    say(h, fmt::format("it has read the step metadata of all ranks: {}", e.name));
  } else if (e.category == "optimizer" && !h.ends) {
    say(h, "the optimizer steps, on the sums");
  }
}

/// Where a rank's step ends, and the one before it: its verdicts.
std::pair<double, double> bounds_of(const RankTrace& trace, int step) {
  std::vector<double> verdicts;
  for (const Event& event : trace.events)
    if (event.category == "verdict") verdicts.push_back(event.begin);
  const auto last = static_cast<std::size_t>(step);
  check<DataError>(step >= 1 && last < verdicts.size(), "[walk] there is no step {} of {}", step,
                   verdicts.size());
  return {verdicts[last - 1], verdicts[last]};
}

}  // namespace

std::vector<std::string> events_of_step(const std::vector<RankTrace>& traces, int step) {
  std::vector<Happening> all;
  for (const RankTrace& trace : traces) {
    const auto [begin, end] = bounds_of(trace, step);
    double backward = end;
    for (const Event& event : trace.events)
      if (event.category == "backward" && event.begin > begin)
        backward = std::min(backward, event.begin);
    // The optimizer's step follows the verdict, perhaps at the same moment.
    const auto optimizer = std::ranges::find_if(trace.events, [end = end](const Event& event) {
      return event.category == "optimizer" && event.begin >= end;
    });
    const double stepped = optimizer == trace.events.end() ? end : optimizer->begin;
    int bucket = -1;
    for (const Event& event : trace.events) {
      if (event.category == "collective") bucket = bucket_of(event.name);
      if (event.begin >= backward && event.begin <= stepped)
        all.push_back({event.begin, trace.rank, &event, false, bucket});
      if (event.end > event.begin && event.begin >= backward && event.begin <= end)
        all.push_back({event.end, trace.rank, &event, true, bucket});
    }
  }
  // In whole nanoseconds: the end of a slice is a sum of two doubles.
  std::ranges::stable_sort(
      all, {}, [](const Happening& h) { return std::pair(std::llround(1e3 * h.time), h.order()); });
  const double zero = all.empty() ? 0 : all.front().time;
  for (Happening& happening : all) happening.time -= zero;
  Story story(traces.size());
  for (const Happening& happening : all) story.tell(happening);
  return story.lines;
}

}  // namespace lockstep::samples
