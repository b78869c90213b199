#include "lockstep/launch/job_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

namespace lockstep::launch {
namespace {

bool is_consequence(const RankOutcome& outcome) {
  return outcome.signal == 0 && outcome.record && outcome.record->consequence;
}

Cause cause_of(const RankOutcome& outcome) {
  if (!outcome.failed()) return Cause::none;
  if (outcome.stopped) return Cause::stopped;
  if (outcome.signal != 0) return Cause::killed;
  return is_consequence(outcome) ? Cause::consequence : Cause::failed;
}

// The smaller, the nearer to the cause.
auto distance_to_cause(const RankOutcome& outcome) {
  return std::tuple(cause_of(outcome), outcome.signal == 0, is_consequence(outcome), outcome.order);
}

std::string name_of(std::size_t place_of_rank, const Place& place) {
  const int rank = place.first_rank + static_cast<int>(place_of_rank);
  return place.node < 0 ? fmt::format("rank {}", rank)
                        : fmt::format("rank {} on node {}", rank, place.node);
}

std::string describe(const std::string& name, const RankOutcome& outcome) {
  std::string text = outcome.signal != 0
                         ? fmt::format("{} was killed by signal {} ({})", name, outcome.signal,
                                       strsignal(outcome.signal))
                         : fmt::format("{} failed with exit code {}", name, outcome.exit_code);
  if (outcome.signal == 0 && outcome.record && outcome.record->message.empty()) return "";
  if (outcome.record && !outcome.record->message.empty())
    return fmt::format("error: {}: {}\n", text, outcome.record->message);
  if (outcome.last_lines.empty()) return fmt::format("error: {}\n", text);
  text = fmt::format("error: {}; the end of its stderr:\n", text);
  for (const std::string& line : outcome.last_lines) text += fmt::format("  {}\n", line);
  return text;
}

// The first rank that ended well before `failure`: the likely cause of a failure that has no other.
std::string early_leaver(std::span<const RankOutcome> outcomes, const RankOutcome& failure,
                         const Place& place) {
  std::size_t leaver = outcomes.size();
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    const int before = leaver < outcomes.size() ? outcomes[leaver].order : failure.order;
    if (!outcomes[r].failed() && outcomes[r].order < before) leaver = r;
  }
  if (leaver == outcomes.size()) return "";
  return fmt::format("{} had ended before, with exit code 0\n", name_of(leaver, place));
}

}  // namespace

JobResult result_of(std::span<const RankOutcome> outcomes, const Place& place) {
  std::size_t first = 0;
  for (std::size_t r = 1; r < outcomes.size(); ++r)
    if (distance_to_cause(outcomes[r]) < distance_to_cause(outcomes[first])) first = r;
  if (outcomes.empty() || !outcomes[first].failed()) return {};

  const RankOutcome& cause = outcomes[first];
  const bool own_code = cause.signal == 0 && cause.exit_code < 124;
  std::string report = describe(name_of(first, place), cause);
  if (is_consequence(cause)) report += early_leaver(outcomes, cause, place);
  return {own_code ? cause.exit_code : 1, std::move(report), cause_of(cause)};
}

JobResult interrupted_by(int signal, const Place& place) {
  const std::string who = place.node < 0 ? "" : fmt::format("node {} was ", place.node);
  return {1, fmt::format("error: {}stopped by signal {} ({})\n", who, signal, strsignal(signal)),
          Cause::interrupted};
}

JobResult lost_node(int node, std::string_view how) {
  return {1, fmt::format("error: node {} is lost: {}\n", node, how), Cause::lost};
}

std::size_t first_cause(std::span<const JobResult> results) {
  return static_cast<std::size_t>(std::ranges::min_element(results, {}, &JobResult::cause) -
                                  results.begin());
}

}  // namespace lockstep::launch
