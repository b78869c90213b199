#include "lockstep/dist/collectives/object_collectives.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <sstream>

#include "lockstep/core/text/number.h"
#include "lockstep/dist/transport/pulse.h"

namespace lockstep::dist {
namespace {

/// The ranks that are not of the majority; none if there is no majority.
std::vector<int> minority(const RanksByValue& said) {
  std::size_t ranks = 0;
  for (const auto& [text, by] : said) ranks += by.size();
  const auto has_most = [&](const auto& group) { return 2 * group.second.size() > ranks; };
  std::vector<int> others;
  if (std::ranges::any_of(said, has_most))
    for (const auto& group : said)
      if (!has_most(group)) others.insert(others.end(), group.second.begin(), group.second.end());
  std::ranges::sort(others);
  return others;
}

}  // namespace

void meet_before_error(Communicator& communicator, std::string_view what) {
  try {
    communicator.barrier(what).wait();
  } catch (const CommError&) {
    // A rank that is gone by now knows the error too, which says more than that it is gone.
  }
}

std::vector<std::string> gather_text(Communicator& communicator, std::string_view text,
                                     std::string_view name, std::optional<Seconds> timeout) {
  const Tensor length = Tensor::scalar(static_cast<double>(text.size()), DType::i64).view({1});
  const Tensor lengths = Tensor::empty({communicator.size()}, DType::i64);
  communicator.all_gather(length, lengths, name).wait(timeout);

  const std::int64_t longest = *std::ranges::max_element(lengths.span<std::int64_t>());
  const Tensor mine = Tensor::zeros({longest}, DType::u8);
  std::ranges::copy(text, mine.data<std::uint8_t>());
  const Tensor all = Tensor::empty({communicator.size(), longest}, DType::u8);
  communicator.all_gather(mine, all, name).wait();

  std::vector<std::string> texts;
  for (std::size_t r = 0; r < index(communicator.size()); ++r) {
    const auto* begin =
        reinterpret_cast<const char*>(all.raw()) + r * static_cast<std::size_t>(longest);
    texts.emplace_back(begin, static_cast<std::size_t>(lengths.data<std::int64_t>()[r]));
  }
  return texts;
}

double sum_over_ranks(Communicator& communicator, double value) {
  const Tensor sum = Tensor::scalar(value, DType::f64).view({1});
  communicator.all_reduce(sum, "sum_over_ranks").wait();
  return sum.item();
}

RanksByValue ranks_by_value(std::span<const std::string> values) {
  RanksByValue result;
  for (std::size_t r = 0; r < values.size(); ++r) {
    auto group = std::ranges::find(result, values[r], [](const auto& one) { return one.first; });
    if (group == result.end()) group = result.insert(group, {values[r], {}});
    group->second.push_back(static_cast<int>(r));
  }
  return result;
}

std::vector<Difference> differences(std::span<const std::string> texts) {
  std::vector<std::istringstream> streams;
  for (const std::string& text : texts) streams.push_back(classic_stream(text));
  std::vector<std::string> lines(texts.size());
  std::vector<Difference> found;
  for (std::size_t line = 0;; ++line) {
    bool any = false;
    for (std::size_t r = 0; r < texts.size(); ++r) {
      const bool has = static_cast<bool>(std::getline(streams[r], lines[r]));
      if (!has) lines[r] = "nothing";
      any = any || has;
    }
    if (!any) return found;
    if (std::ranges::count(lines, lines[0]) == std::ssize(lines)) continue;
    found.push_back({line, ranks_by_value(lines)});
  }
}

std::string describe(const RanksByValue& said) {
  RanksByValue sorted = said;
  std::ranges::stable_sort(sorted, {}, [](const auto& group) { return group.second.size(); });
  std::string text;
  for (const auto& [what, by] : sorted)
    text += fmt::format("{}{} on {}", text.empty() ? "" : ", ", what, name_ranks(by));
  const std::vector<int> wrong = minority(said);
  return wrong.empty() ? text : text + ": " + describe_ranks(wrong, "in the minority");
}

RanksByValue as_known(const Communicator& communicator, RanksByValue said) {
  for (auto& [what, by] : said)
    for (int& rank : by) rank = communicator.membership().known_as(rank);
  return said;
}

Blame in_minority(const Communicator& communicator, const RanksByValue& said) {
  const std::vector<int> ranks = minority(said);
  Blame blame{.fault = Fault::in_minority};
  for (const int rank : ranks) blame.ranks.push_back(communicator.membership().in_job(rank));
  if (blame.ranks != ranks) blame.detail = fmt::format("({} of the group)", fmt::join(ranks, ", "));
  return blame;
}

void check_same(Communicator& communicator, std::string_view what, std::string_view text) {
  const std::vector<Difference> found = differences(gather_text(communicator, text, what));
  if (found.empty()) return;
  meet_before_error(communicator, "difference found");
  std::string message = fmt::format("[{}] the ranks differ: {}", what,
                                    describe(as_known(communicator, found[0].said)));
  if (found.size() > 1) message += fmt::format("; and at {} more places", found.size() - 1);
  throw blaming(in_minority(communicator, found[0].said), StateError(message));
}

namespace {

// How long a rank waits for others that work; nothing: as in any call, and they tell that they do.
std::optional<Seconds> patience_of(const Communicator& communicator,
                                   std::optional<Seconds> timeout) {
  if (timeout || communicator.hears_of_work()) return timeout;
  return longest_work;
}

// `tells`: that it is at work. `patience`: as gather_text's timeout.
void together(Communicator& communicator, const std::function<void()>& task, std::string_view name,
              bool tells, std::optional<Seconds> patience) {
  std::exception_ptr error;
  std::string message;
  try {
    const std::shared_ptr<void> work = tells ? communicator.begin_work() : nullptr;
    task();
  } catch (...) {
    error = std::current_exception();
    message = current_message().substr(0, 4096);
  }
  const auto messages = gather_text(communicator, message, name, patience);
  const auto failed = std::ranges::find_if_not(messages, &std::string::empty);
  if (failed == messages.end()) return;
  const auto rank = static_cast<int>(failed - messages.begin());
  const int known_as = communicator.membership().known_as(rank);
  meet_before_error(communicator, fmt::format("rank {} failed", known_as));
  if (error) std::rethrow_exception(error);
  throw blaming(communicator.membership().blame(rank, Fault::failed),
                PeerError(fmt::format("[{}] rank {} failed: {}", name, known_as, *failed)));
}

}  // namespace

void on_rank0(Communicator& communicator, const std::function<void()>& task,
              std::optional<Seconds> timeout) {
  // Rank 0 comes when it is done. It waits for the others only as long as for any collective.
  if (communicator.rank() == 0)
    return together(communicator, task, "on_rank0", !timeout, std::nullopt);
  together(
      communicator, [] {}, "on_rank0", false, patience_of(communicator, timeout));
}

void on_every_rank(Communicator& communicator, const std::function<void()>& task,
                   std::optional<Seconds> timeout) {
  together(communicator, task, "on_every_rank", !timeout, patience_of(communicator, timeout));
}

}  // namespace lockstep::dist
