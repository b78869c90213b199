#include "lockstep/dist/verdict.h"

#include <fmt/format.h>

#include <cstring>
#include <tuple>
#include <utility>

namespace lockstep::dist {
namespace {

bool is_echo(const RankOutcome& outcome) {
  return outcome.signal == 0 && outcome.record && outcome.record->echo;
}

// Smaller is nearer to the cause.
auto distance_to_cause(const RankOutcome& outcome) {
  return std::tuple(!outcome.failed(), outcome.stopped, outcome.signal == 0, is_echo(outcome),
                    outcome.order);
}

std::string describe(int rank, const RankOutcome& outcome) {
  std::string text = outcome.signal != 0
                         ? fmt::format("rank {} was killed by signal {} ({})", rank, outcome.signal,
                                       strsignal(outcome.signal))
                         : fmt::format("rank {} failed with exit code {}", rank, outcome.exit_code);
  if (outcome.signal == 0 && outcome.record && outcome.record->message.empty()) return "";
  if (outcome.record && !outcome.record->message.empty())
    return fmt::format("error: {}: {}\n", text, outcome.record->message);
  if (outcome.last_lines.empty()) return fmt::format("error: {}\n", text);
  text = fmt::format("error: {}; the end of its stderr:\n", text);
  for (const std::string& line : outcome.last_lines) text += fmt::format("  {}\n", line);
  return text;
}

// The first rank that left without a complaint before `echo` failed: the likely cause of a failure
// that has no other.
std::string early_leaver(std::span<const RankOutcome> outcomes, const RankOutcome& echo) {
  std::size_t leaver = outcomes.size();
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    const int before = leaver < outcomes.size() ? outcomes[leaver].order : echo.order;
    if (!outcomes[r].failed() && outcomes[r].order < before) leaver = r;
  }
  if (leaver == outcomes.size()) return "";
  return fmt::format("rank {} had ended before, with exit code 0\n", leaver);
}

}  // namespace

Verdict judge(std::span<const RankOutcome> outcomes) {
  std::size_t first = 0;
  for (std::size_t r = 1; r < outcomes.size(); ++r)
    if (distance_to_cause(outcomes[r]) < distance_to_cause(outcomes[first])) first = r;
  if (outcomes.empty() || !outcomes[first].failed()) return {};

  const RankOutcome& cause = outcomes[first];
  const bool own_code = cause.signal == 0 && cause.exit_code < 124;
  std::string report = describe(static_cast<int>(first), cause);
  if (is_echo(cause)) report += early_leaver(outcomes, cause);
  return {own_code ? cause.exit_code : 1, std::move(report)};
}

Verdict interrupted_by(int signal) {
  return {1, fmt::format("error: stopped by signal {} ({})\n", signal, strsignal(signal))};
}

}  // namespace lockstep::dist
