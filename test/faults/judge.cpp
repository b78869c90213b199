// Whether what was seen is what is promised, and who was named.

#include <fmt/format.h>

#include <algorithm>
#include <regex>

#include "faults/cell.h"
#include "support/text.h"

namespace lockstep::test {

std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  for (const Start& start : starts)
    for (const Fault& fault : faults)
      for (const std::string& moment : moments)
        for (const std::string& transport : start.transports)
          for (int victim = 0; victim < ranks; ++victim)
            cells.push_back({&start, &fault, &moment, &transport, victim});
  return cells;
}

namespace {

/// All numbers in a text such as "1, 2".
std::vector<int> numbers(const std::string& text) {
  static const std::regex number("[0-9]+");
  std::vector<int> result;
  for (std::sregex_iterator at(text.begin(), text.end(), number), end; at != end; ++at)
    result.push_back(std::stoi(at->str()));
  return result;
}

/// The ranks in the first group of the first pattern that matches.
std::vector<int> first_match(const std::string& text, const std::vector<std::regex>& patterns) {
  std::smatch match;
  for (const std::regex& pattern : patterns)
    if (std::regex_search(text, match, pattern)) return numbers(match[1]);
  return {};
}

/// Whom a launcher names: lockstep-run, or mpirun in its own words.
std::vector<int> named_by_launcher(const std::string& err) {
  static const std::vector<std::regex> patterns = {
      std::regex("rank ([0-9]+)( on node [0-9]+)? ended with exit code 0 without the call"),
      std::regex("error: ranks? ([0-9, ]+) (hangs|is gone|is missing|are missing|left):"),
      std::regex("error: rank ([0-9]+)( on node [0-9]+)? was killed by signal"),
      std::regex("process rank ([0-9]+) with PID [0-9]+ on node .* exited on signal"),
  };
  if (const auto named = first_match(err, patterns); !named.empty()) return named;
  static const std::regex failed("error: rank ([0-9]+)( on node [0-9]+)? failed with ([^\\n]*)");
  static const std::regex of_mpirun("Process name: \\[\\[[0-9]+,[0-9]+\\],([0-9]+)\\]");
  std::smatch match;
  if (std::regex_search(err, match, failed)) {
    const auto others = blamed(match[3]);  // its reason may be another rank
    return others.empty() ? numbers(match[1]) : others;
  }
  return first_match(err, {of_mpirun});
}

/// Words without numbers, so that rows do not depend on who was the victim.
std::string in_general(const std::string& message, int victim) {
  static const std::vector<std::pair<std::regex, std::string>> forms = {
      {std::regex("timed out after [^:]*waiting for rank ([0-9]+)"), "timed out, waiting for "},
      {std::regex("ranks? ([0-9, ]+) (is|are) missing"), "missing: "},
      {std::regex("did not find rank ([0-9]+)"), "did not find "},
      {std::regex("no answer from rank ([0-9]+)"), "no answer from "},
      {std::regex("rank ([0-9]+) no longer listens"), "no longer listens: "},
      {std::regex("ranks? ([0-9, ]+) (is|are) gone"), "gone: "},
      {std::regex("rank ([0-9]+) left"), "left: "},
      {std::regex("rank ([0-9]+) was ended by an error"), "ended by an error of its own: "},
      {std::regex("rank ([0-9]+) failed"), "failed: "},
  };
  for (const auto& [pattern, words] : forms) {
    std::smatch match;
    if (!std::regex_search(message, match, pattern)) continue;
    if (match.size() < 2) return words;
    return words + (numbers(match[1]) == std::vector{victim} ? "V" : match[1].str());
  }
  return message.substr(0, 120);
}

enum class Job { succeeds, fails, waits, may_fail };
struct Expected {
  Job job;
  bool survivors_fail;  // they throw, unless a launcher ends them first
  const char* limit = "";
};
Expected expected(const Cell& cell) {
  const std::string &fault = cell.fault->name, &moment = *cell.moment;
  const bool end = moment == "at the end", hangs = fault == "SIGSTOP" || fault == "loop";
  if (fault == "pause" && moment.ends_with("joining"))
    return {Job::may_fail, false, "while ranks join, a pause counts towards the timeout"};
  if (fault == "pause") return {Job::succeeds, false};
  if (end && fault == "exit(0)") return {Job::succeeds, false};
  if (end && hangs && cell.start->ends_ranks)
    return {Job::waits, false, "the launcher waits for V, which may have work to do"};
  if (hangs && !cell.start->ends_ranks) return {Job::fails, !end, "V hangs until somebody ends it"};
  return {Job::fails, !end};
}

void judge_ends(const Cell& cell, const Seen& seen, Verdict& verdict) {
  constexpr double late = timeout + 1 + 0.3;  // joining takes a second more; the machine is shared
  const auto wrong = [&](const std::string& text) { verdict.wrong.push_back(text); };
  const Expected should = expected(cell);
  if (!seen.reached) return wrong("the victim did not come to its moment: " + seen.err);
  if (*should.limit) verdict.limits.emplace_back(should.limit);
  if (seen.ended != (should.job != Job::waits))
    wrong(fmt::format("{} after {:.1f} s", seen.ended ? "ended" : "had not ended", seen.seconds));
  if (seen.ended && seen.left_running > 0)
    wrong(fmt::format("{} processes are left", seen.left_running));
  if (cell.fault->name != "pause" && seen.slowest_said > late)
    wrong(fmt::format("an error came after {:.1f} s", seen.slowest_said));
  if (!seen.ended || should.job == Job::may_fail) return;
  for (std::size_t k = 0; k < seen.codes.size(); ++k) {
    const bool launcher = cell.start->ends_ranks;
    if (!launcher && static_cast<int>(k) == cell.victim) continue;
    const bool should_be_well =
        should.job == Job::succeeds || (!launcher && !should.survivors_fail);
    if ((seen.codes[k] == 0) != should_be_well)
      wrong(fmt::format("program {} ended with code {}, signal {}", k, seen.codes[k],
                        seen.signals[k]));
  }
}

void judge_names(const Cell& cell, const Seen& seen, Verdict& verdict) {
  const Expected should = expected(cell);
  if (should.job == Job::may_fail) return;
  if (cell.start->ends_ranks && should.job == Job::fails)
    verdict.launcher_right = named_by_launcher(seen.err) == std::vector{cell.victim};
  const bool told = verdict.launcher_right.value_or(false);
  if (cell.start->is_ours && should.job == Job::fails && !told)
    verdict.wrong.push_back("the launcher names another: " + seen.err);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string& said = seen.said[static_cast<std::size_t>(rank)];
    if (said.empty() || (rank == cell.victim && cell.fault->name != "pause")) continue;
    if (!should.survivors_fail)
      verdict.wrong.push_back(fmt::format("rank {} says: {}", rank, said));
    ++verdict.survivors;
    const bool right = blamed(said) == std::vector{cell.victim};
    verdict.survivors_right += right;
    const bool too_late = cell.moment->ends_with("joining") && blamed(said) == std::vector{0};
    if (!right && too_late)
      verdict.limits.emplace_back("who comes after rank 0 has given up names rank 0");
    else if (!right && !(cell.start->is_ours && told))  // then nobody sees what others say
      verdict.wrong.push_back(fmt::format("rank {} blames another: {}", rank, said));
    const std::string words = in_general(said, cell.victim);
    if (std::ranges::count(verdict.survivors_say, words) == 0)
      verdict.survivors_say.push_back(words);
  }
}

void judge_files(const Seen& seen, Verdict& verdict) {
  if (!seen.checkpoint_old && !seen.checkpoint_new)
    verdict.wrong.emplace_back("the checkpoint is not whole");
  if (!seen.next_save_cleans)
    verdict.wrong.emplace_back("the next save leaves an unfinished checkpoint");
  if (!seen.ended) return;  // the drill has ended the launcher, which could not clean up
  for (const std::string& file : seen.files) verdict.limits.push_back(file + " is left");
}

}  // namespace

std::vector<int> blamed(const std::string& message) {
  static const std::regex of_group("waiting for rank [0-9]+, rank ([0-9]+) of the world");
  static const std::vector<std::regex> patterns = {
      of_group,
      std::regex("waiting for rank ([0-9]+)"),
      std::regex("ranks? ([0-9, ]+) (is|are) (missing|gone)"),
      std::regex("did not find rank ([0-9]+)"),
      std::regex("no answer from rank ([0-9]+)"),
      std::regex("rank ([0-9]+) (no longer listens|left|was ended by an error|failed|gave up)"),
  };
  return first_match(message, patterns);
}

Verdict judge(const Cell& cell, const Seen& seen) {
  Verdict verdict;
  judge_ends(cell, seen, verdict);
  judge_names(cell, seen, verdict);
  judge_files(seen, verdict);
  return verdict;
}

}  // namespace lockstep::test
