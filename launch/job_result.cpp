#include "lockstep/launch/job_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
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

/// The ranks that it blames; none if a signal has ended it.
Blame blame_of(const RankOutcome& outcome) {
  return outcome.signal == 0 && outcome.record ? outcome.record->blame : Blame{};
}

// The ranks that an outcome blames of having ended.
std::vector<int> missed_by(const RankOutcome& outcome) {
  const Blame blame = blame_of(outcome);
  const bool ended = blame.fault == Fault::left || blame.fault == Fault::gone;
  return ended ? blame.ranks : std::vector<int>();
}

// Ranks that have only ended because others had. A rank that the launcher has stopped is none of
// these if another rank has seen it leave before: it ended its World too early, and ran on.
std::vector<int> echoes_of(std::span<const RankOutcome> outcomes, const JobPlan& plan) {
  std::vector<int> ranks;
  const auto has_left = [&](int rank) {
    return std::ranges::any_of(outcomes, [&](const RankOutcome& outcome) {
      return blame_of(outcome) == Blame{{rank}, Fault::left};
    });
  };
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    const int rank = plan.number(static_cast<std::ptrdiff_t>(r));
    const Cause cause = cause_of(outcomes[r]);
    if (cause == Cause::consequence || (cause == Cause::stopped && !has_left(rank)))
      ranks.push_back(rank);
  }
  return ranks;
}

// An outcome that blames a rank knows more than one that does not, unless the blamed rank is an
// echo.
enum class Sight { culprit, nobody, echo };
Sight sight_of(bool blames, const std::vector<int>& missed, const std::vector<int>& echoes) {
  if (!blames) return Sight::nobody;
  const auto is_echo = [&](int rank) { return std::ranges::count(echoes, rank) > 0; };
  return std::ranges::any_of(missed, is_echo) ? Sight::echo : Sight::culprit;
}

// Whether `outcome` blames this rank of the job, and no other one.
bool blames_rank(const RankOutcome& outcome, int rank) {
  return blame_of(outcome).ranks == std::vector{rank};
}

// The rank to report: the rank nearest to the cause; but if it blames another rank that has failed
// by itself, that one, which knows better.
std::ptrdiff_t first_cause(std::span<const RankOutcome> outcomes, const JobPlan& plan) {
  const std::vector<int> echoes = echoes_of(outcomes, plan);
  const auto distance_to_cause = [&](const RankOutcome& outcome) {
    return std::tuple(cause_of(outcome), outcome.signal == 0, is_consequence(outcome),
                      sight_of(blame_of(outcome).known(), missed_by(outcome), echoes),
                      outcome.order);
  };
  const auto first = std::ranges::min_element(outcomes, {}, distance_to_cause);
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    if (blames_rank(*first, plan.number(static_cast<std::ptrdiff_t>(r))) &&
        cause_of(outcomes[r]) <= Cause::failed)
      return static_cast<std::ptrdiff_t>(r);
  return first - outcomes.begin();
}

std::string name_of(std::ptrdiff_t place, const JobPlan& plan) {
  const int rank = plan.number(place);
  return plan.nodes == 1 ? fmt::format("rank {}", rank)
                         : fmt::format("rank {} on node {}", rank, plan.node);
}

// What may have sent SIGKILL: not the launcher, where the failure counts.
std::string_view killer(const RankOutcome& outcome) {
  if (!outcome.killed()) return "";
  return outcome.out_of_memory
             ? ": probably out of memory, as the kernel's OOM killer has ended a process meanwhile"
             : ": perhaps out of memory";
}

// A failure whose cause is another rank, "rank 1 hangs": that comes first.
std::string describe_blame(const std::string& blame, const std::string& message,
                           const std::string& reporter) {
  return fmt::format("error: {}: {}{}\n", blame, message,
                     reporter.empty() ? "" : fmt::format(" (reported by {})", reporter));
}

std::string describe(std::ptrdiff_t place, const RankOutcome& outcome, const JobPlan& plan) {
  const std::string name = name_of(place, plan);
  if (const Blame blame = blame_of(outcome); blame.known())
    return describe_blame(text_of(blame), outcome.record->message,
                          blames_rank(outcome, plan.number(place)) ? "" : name);
  const bool by_code = outcome.signal == 0 && outcome.killed();
  const std::string text = outcome.signal != 0
                               ? fmt::format("{} was killed by signal {} ({})", name,
                                             outcome.signal, strsignal(outcome.signal))
                               : fmt::format("{} failed with exit code {}{}", name,
                                             outcome.exit_code, by_code ? " (SIGKILL)" : "");
  if (outcome.signal == 0 && outcome.record && outcome.record->message.empty()) return "";
  constexpr int usage = 2;  // wrong options are no rank's failure: all ranks got them
  if (outcome.exit_code == usage && outcome.record && !outcome.record->message.empty())
    return fmt::format("error: {} (reported by {})\n", outcome.record->message, name);
  if (outcome.record && !outcome.record->message.empty())
    return fmt::format("error: {}: {}\n", text, outcome.record->message);
  if (outcome.last_lines.empty()) return fmt::format("error: {}{}\n", text, killer(outcome));
  return fmt::format("error: {}{}; the end of its stderr:\n  {}\n", text, killer(outcome),
                     fmt::join(outcome.last_lines, "\n  "));
}

// A rank that has ended well, although `failure` blames it of being gone: it left too early.
std::string early_leaver(std::span<const RankOutcome> outcomes, const RankOutcome& failure,
                         const JobPlan& plan) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    const auto rank = static_cast<std::ptrdiff_t>(r);
    const bool blamed = missed_by(failure) == std::vector{plan.number(rank)};
    if (blamed && outcomes[r].ended_well())
      return name_of(rank, plan) + " ended with exit code 0 without the call that others wait in";
  }
  return "";
}

// Ranks that ended well before a failure that blames no rank: perhaps its cause.
std::string ended_before(std::span<const RankOutcome> outcomes, const RankOutcome& failure,
                         const JobPlan& plan) {
  std::string text;
  for (std::size_t r = 0; r < outcomes.size() && !blame_of(failure).known(); ++r)
    if (outcomes[r].ended_well() && outcomes[r].order < failure.order)
      text += fmt::format("{} had ended before, with exit code 0\n",
                          name_of(static_cast<std::ptrdiff_t>(r), plan));
  return text;
}

// Of ranks that have succeeded. If replicas differ, they did so without an error.
JobResult success_of(std::span<const RankOutcome> outcomes, const JobPlan& plan) {
  JobResult result;
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    for (const dist::ReplicaRecord& record : outcomes[r].replicas)
      result.replicas.push_back({plan.number(static_cast<std::ptrdiff_t>(r)), record});
  for (std::size_t r = 0; r < outcomes.size() && !plan.respawn; ++r) {
    if (outcomes[r].in_world) result.left.push_back(plan.number(static_cast<std::ptrdiff_t>(r)));
    result.parted |= outcomes[r].parted;
  }
  if (plan.nodes > 1) return result;  // all nodes' are compared together
  JobResult compared = compare_ends(std::span(&result, 1));
  return compared.cause == Cause::none ? result : compared;
}

}  // namespace

JobResult compare_ends(std::span<const JobResult> results) {
  dist::LeftReplicas left;
  std::vector<int> leavers;
  bool parted = false;
  for (const JobResult& result : results) {
    if (result.cause != Cause::none) return {};
    leavers.insert(leavers.end(), result.left.begin(), result.left.end());
    parted |= result.parted;
    for (const auto& [rank, record] : result.replicas)
      left.add(record.model, rank, record.fingerprint);
  }
  if (!leavers.empty() && parted)  // what replicas they leave follows from that
    return {1,
            fmt::format("error: {} left with exit code 0 inside of a World that others have "
                        "ended\n",
                        dist::name_ranks(leavers)),
            Cause::failed};
  const std::string difference = left.difference();
  if (difference.empty()) return {};
  return {1, fmt::format("error: {}\n", difference), Cause::failed};
}

std::size_t first_of(std::span<const JobResult> results) {
  std::vector<int> echoes;
  for (const JobResult& result : results)
    echoes.insert(echoes.end(), result.echoes.begin(), result.echoes.end());
  const auto distance = [&](const JobResult& result) {
    const bool knows = result.cause != Cause::consequence || !result.missed.empty();
    return std::tuple(result.cause, sight_of(knows, result.missed, echoes));
  };
  return static_cast<std::size_t>(std::ranges::min_element(results, {}, distance) -
                                  results.begin());
}

bool RankOutcome::killed() const { return signal == SIGKILL || exit_code == 128 + SIGKILL; }

JobResult result_of(std::span<const RankOutcome> outcomes, const JobPlan& plan) {
  if (outcomes.empty()) return {};
  const std::ptrdiff_t rank = first_cause(outcomes, plan);
  const RankOutcome& first = outcomes[static_cast<std::size_t>(rank)];
  if (!first.failed()) return success_of(outcomes, plan);
  const bool own_code = first.signal == 0 && first.exit_code < 124;
  const std::string name = name_of(rank, plan);
  std::string report = describe(rank, first, plan);
  if (cause_of(first) == Cause::consequence && first.left_behind) {
    report = fmt::format(
        "error: {} cannot go on with other ranks than before: its program has not called survive() "
        "(train has an option for it: --survive): {}\n",
        name, first.record ? first.record->message : "");
  } else if (cause_of(first) == Cause::consequence) {
    const std::string leaver = early_leaver(outcomes, first, plan);
    report = leaver.empty() ? report + ended_before(outcomes, first, plan)
                            : describe_blame(leaver, first.record->message, name);
  }
  return {own_code ? first.exit_code : 1, std::move(report), cause_of(first), {}, missed_by(first),
          echoes_of(outcomes, plan)};
}

JobResult interrupted_by(int signal, const JobPlan& plan) {
  const std::string who = plan.nodes == 1 ? "" : fmt::format("node {} was ", plan.node);
  return {128 + signal,
          fmt::format("error: {}stopped by signal {} ({})\n", who, signal, strsignal(signal)),
          Cause::interrupted};
}

}  // namespace lockstep::launch
