#pragma once
/// What is kept of each word of memory that threads share: its last accesses.

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace simt::detail::races {

struct Access {
  std::uint32_t time = 0;    ///< of its thread
  std::uint32_t blocks = 0;  ///< of which cluster of blocks, in the order in which they ran
  int thread = 0;            ///< of the cluster
  bool writes = false, atomic = false;
  const void* caller = nullptr;  ///< where it is in the program

  bool same_kind(const Access& other) const {
    return writes == other.writes && atomic == other.atomic;
  }
  /// One of the two writes, and not both are atomics.
  bool conflicts_with(const Access& other) const {
    return (writes || other.writes) && !(atomic && other.atomic);
  }
  /// Whatever conflicts with the other one conflicts with this one.
  bool covers(const Access& other) const {
    return (writes || !other.writes) && (other.atomic || !atomic);
  }
};

/// The accesses of a piece of memory with which a later one may conflict.
struct Cell {
  std::vector<Access> last;
  bool written = false;

  /// At most two accesses of each kind for a warp: the first one, and the newest of other threads.
  /// Of blocks that ran earlier one of each kind is enough: no later block knows them.
  void keep(const Access& access);
};

/// Cells of words, or of bytes where a smaller piece than a word was accessed.
class Shadow {
 public:
  /// Calls use(Cell&) for each cell of [address, address + bytes).
  template <class Use>
  void each(std::uintptr_t address, std::size_t bytes, const Use& use) {
    for (std::size_t done = 0; done < bytes;) {
      const std::uintptr_t at = address + done;
      Page& page = page_of(at);
      if (page.grain == word && (at % word != 0 || bytes - done < word)) split(page);
      use(page.cells[at % page_bytes / page.grain]);
      done += page.grain;
    }
  }
  void clear() { pages_.clear(), newest_ = nullptr; }

 private:
  static constexpr std::size_t page_bytes = 1024, word = 4;
  struct Page {
    std::size_t grain = word;
    std::vector<Cell> cells = std::vector<Cell>(page_bytes / word);
  };

  Page& page_of(std::uintptr_t address) {
    const std::uintptr_t number = address / page_bytes;
    if (!newest_ || number != newest_number_) {
      newest_ = &pages_[number];
      newest_number_ = number;
    }
    return *newest_;
  }
  static void split(Page& page) {
    std::vector<Cell> cells(page_bytes);
    for (std::size_t i = 0; i < page_bytes; ++i) cells[i] = page.cells[i / word];
    page = {1, std::move(cells)};
  }

  std::unordered_map<std::uintptr_t, Page> pages_;
  Page* newest_ = nullptr;
  std::uintptr_t newest_number_ = 0;
};

/// Bytes of global memory that nobody has written.
class Undefined {
 public:
  void set(std::uintptr_t address, std::size_t bytes, bool undefined);
  bool any(std::uintptr_t address, std::size_t bytes) const;

 private:
  static constexpr std::size_t page_bytes = 4096;
  std::unordered_map<std::uintptr_t, std::vector<bool>> pages_;  ///< only those that have any
};

}  // namespace simt::detail::races
