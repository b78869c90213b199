#include "lockstep/dist/collectives/object_collectives.h"

#include <algorithm>
#include <exception>
#include <sstream>

namespace lockstep::dist {
namespace {

/// All ranks are about to throw the same. None ends before all have come here: else a slow one
/// would report that another has ended.
void meet_before_error(Communicator& communicator, std::string_view what) {
  try {
    communicator.barrier(what).wait();
  } catch (const PeerError&) {
  }
}

}  // namespace

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

std::vector<Difference> differences(std::span<const std::string> texts) {
  std::vector<std::istringstream> streams;
  for (const std::string& text : texts) streams.emplace_back(text);
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
    auto& said = found.emplace_back(Difference{line, {}}).said;
    for (std::size_t r = 0; r < lines.size(); ++r) {
      auto group = std::ranges::find(said, lines[r], [](const auto& one) { return one.first; });
      if (group == said.end()) group = said.insert(group, {lines[r], {}});
      group->second.push_back(static_cast<int>(r));
    }
  }
}

void check_same(Communicator& communicator, std::string_view what, std::string_view text) {
  const std::vector<Difference> found = differences(gather_text(communicator, text, what));
  if (found.empty()) return;
  meet_before_error(communicator, "difference found");
  const auto& [line, said] = found[0];
  const int other = said[1].second[0];
  fail<StateError>("[{}] rank {} differs from rank 0 at item {}: {} on rank 0, {} on rank {}", what,
                   other, line, said[0].first, said[1].first, other);
}

void on_rank0(Communicator& communicator, const std::function<void()>& task, Seconds timeout) {
  std::exception_ptr error;
  std::string message;
  if (communicator.rank() == 0) try {
      task();
    } catch (...) {
      error = std::current_exception();
      message = current_message().substr(0, 4096);
    }
  // Rank 0 comes when it is done. It waits for the others only as long as for any collective.
  const auto patience = communicator.rank() == 0 ? std::nullopt : std::optional(timeout);
  message = gather_text(communicator, message, "on_rank0", patience)[0];
  if (!message.empty()) meet_before_error(communicator, "rank 0 failed");
  if (error) std::rethrow_exception(error);
  check<PeerError>(message.empty(), "[on_rank0] rank 0 failed: {}", message);
}

}  // namespace lockstep::dist
