#include "lockstep/dist/collectives/object_collectives.h"

#include <algorithm>
#include <exception>
#include <sstream>

namespace lockstep::dist {
namespace {

/// The next line; "nothing" after the last one.
std::string next_line(std::istringstream& text) {
  std::string line;
  return std::getline(text, line) ? line : "nothing";
}

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

void check_same(Communicator& communicator, std::string_view what, std::string_view text) {
  const std::vector<std::string> texts = gather_text(communicator, text, what);
  for (std::size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) continue;
    std::istringstream ours(texts[0]), theirs(texts[r]);
    std::string mine = next_line(ours), other = next_line(theirs);
    std::size_t item = 0;
    for (; mine == other && ours; ++item) mine = next_line(ours), other = next_line(theirs);
    meet_before_error(communicator, "difference found");
    fail<StateError>("[{}] rank {} differs from rank 0 at item {}: {} on rank 0, {} on rank {}",
                     what, r, item, mine, other, r);
  }
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
  check<StateError>(message.empty(), "[on_rank0] rank 0 failed: {}", message);
}

}  // namespace lockstep::dist
