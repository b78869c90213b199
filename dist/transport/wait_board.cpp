#include "lockstep/dist/transport/wait_board.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "lockstep/dist/transport/regions.h"

namespace lockstep::dist {
namespace {

using NoteWords = std::array<std::uint64_t, sizeof(WaitNote) / sizeof(std::uint64_t)>;

/// A rank's note in memory. The version is odd while the note is being written.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> version;
  std::array<std::atomic<std::uint64_t>, NoteWords{}.size()> words;
};
static_assert(sizeof(Slot) <= wait_board_bytes);

class MemoryWaitBoard final : public WaitBoard {
 public:
  MemoryWaitBoard(SharedRegion region, int rank)
      : WaitBoard(rank, static_cast<int>(region.base.size())), region_(std::move(region)) {}

  WaitNote of(int rank) noexcept override {
    const Slot& slot = slot_of(rank);
    // Its owner may be stopped in the middle of writing: then it has told nothing.
    for (int attempt = 0; attempt < 100; ++attempt) {
      const std::uint64_t before = slot.version.load(std::memory_order_acquire);
      NoteWords words;
      for (std::size_t k = 0; k < words.size(); ++k)
        words[k] = slot.words[k].load(std::memory_order_acquire);
      if (before % 2 == 0 && slot.version.load(std::memory_order_relaxed) == before)
        return std::bit_cast<WaitNote>(words);
    }
    return {};
  }

 private:
  Slot& slot_of(int rank) const { return *reinterpret_cast<Slot*>(region_.base[index(rank)]); }

  void publish(const WaitNote& note) noexcept override {
    const auto words = std::bit_cast<NoteWords>(note);
    Slot& slot = slot_of(rank());
    const std::uint64_t version = slot.version.load(std::memory_order_relaxed);
    slot.version.store(version + 1, std::memory_order_relaxed);
    for (std::size_t k = 0; k < words.size(); ++k)  // release: not before the odd version
      slot.words[k].store(words[k], std::memory_order_release);
    slot.version.store(version + 2, std::memory_order_release);
  }

  SharedRegion region_;
};

}  // namespace

void WaitBoard::tell(WaitNote::Kind kind, int rank, std::string_view call) noexcept {
  mine_.kind = kind;
  mine_.rank = rank;
  ++mine_.beat;
  mine_.call.fill(0);
  std::copy_n(call.begin(), std::min(call.size(), mine_.call.size()), mine_.call.begin());
  publish(mine_);
}

std::shared_ptr<WaitBoard> memory_wait_board(SharedRegion region, int rank) {
  return std::make_shared<MemoryWaitBoard>(std::move(region), rank);
}

std::vector<std::shared_ptr<WaitBoard>> threads_wait_boards(int size) {
  const SharedRegion region = cut_into_parts(
      allocate_pages(parts_apart(wait_board_bytes, size) * index(size)), size, wait_board_bytes);
  std::vector<std::shared_ptr<WaitBoard>> boards;
  for (int rank = 0; rank < size; ++rank) boards.push_back(memory_wait_board(region, rank));
  return boards;
}

}  // namespace lockstep::dist
