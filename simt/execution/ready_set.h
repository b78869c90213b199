#pragma once
/// The threads of a block (or of a cluster of blocks) that can run, as bits.

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "lockstep/simt/execution/limits.h"

namespace simt::detail {

class ReadySet {
 public:
  static constexpr int most = limits::cluster_threads;

  void insert(int thread) {
    words_[thread / 64] |= bit(thread);
    end_ = std::max(end_, thread / 64 + 1);
    ++size_;
  }
  void erase(int thread) {
    words_[thread / 64] &= ~bit(thread);
    --size_;
  }
  /// Those of [first, end), none of which is in the set.
  void insert(int first, int end) {
    size_ += end - first;
    end_ = std::max(end_, (end + 63) / 64);
    for (int count; first < end; first += count) {
      count = std::min(end - first, 64 - first % 64);
      words_[first / 64] |= ~std::uint64_t{0} >> (64 - count) << first % 64;
    }
  }
  void clear() {
    words_ = {};
    size_ = end_ = 0;
  }
  int size() const { return size_; }

  // Of a set that is not empty:
  int first() const {
    int word = 0;
    while (!words_[word]) ++word;
    return word * 64 + std::countr_zero(words_[word]);
  }
  int last() const {
    int word = end_ - 1;
    while (!words_[word]) --word;
    return word * 64 + 63 - std::countl_zero(words_[word]);
  }
  /// The one with `rank` smaller ones in the set.
  int at(int rank) const {
    int word = 0;
    for (int here; rank >= (here = std::popcount(words_[word])); ++word) rank -= here;
    std::uint64_t bits = words_[word];
    for (; rank > 0; --rank) bits &= bits - 1;
    return word * 64 + std::countr_zero(bits);
  }

 private:
  static constexpr std::uint64_t bit(int thread) { return std::uint64_t{1} << (thread % 64); }

  std::array<std::uint64_t, most / 64> words_{};
  int size_ = 0;
  int end_ = 0;  ///< no word from here on ever had a thread since clear()
};

}  // namespace simt::detail
