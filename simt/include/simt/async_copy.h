#pragma once
/// PTX's cp.async. What such a copy writes appears when the thread waits for its group, not before:
/// until then its destination holds a NaN pattern. So a kernel that reads a tile without waiting,
/// or that waits for too few groups, computes NaN here, as it may compute anything on a GPU.

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "language.h"
#include "warp.h"

namespace simt::detail {

/// Tells a build that watches accesses (races/races.h) of one that no instruction here makes: a
/// copy may write from its begin on, and until it has been waited for.
void async_access(const void* data, std::size_t bytes, bool writes);

/// So that what calls async_access() is the kernel.
#define SIMT_INLINE __attribute__((always_inline)) inline

/// The copies that one thread has under way.
class AsyncCopies {
 public:
  /// Of the running thread. What an earlier block left behind is dropped.
  static AsyncCopies& mine() {
    static std::array<AsyncCopies, 1024> all;  // the most threads of a block, or cluster
    AsyncCopies& copies = all[linear_thread()];
    if (copies.cluster_ != clusters_begun()) {
      copies.copies_.clear();
      copies.group_ends_.clear();
      copies.cluster_ = clusters_begun();
    }
    return copies;
  }

  SIMT_INLINE void start(void* shared, const void* global, std::size_t bytes, bool valid) {
    check_aligned(shared, bytes, "shared");
    check_aligned(global, bytes, "global");
    Copy copy{shared, bytes, {}};
    if (valid) std::memcpy(copy.data.data(), global, bytes);
    if (valid) async_access(global, bytes, false);
    async_access(shared, bytes, true);
    std::memset(shared, 0xff, bytes);
    copies_.push_back(copy);
  }

  void commit() { group_ends_.push_back(copies_.size()); }

  SIMT_INLINE void wait(std::size_t unfinished) {
    if (group_ends_.size() <= unfinished) return;
    const std::size_t groups = group_ends_.size() - unfinished, end = group_ends_[groups - 1];
    for (std::size_t i = 0; i < end; ++i) {
      std::memcpy(copies_[i].to, copies_[i].data.data(), copies_[i].bytes);
      async_access(copies_[i].to, copies_[i].bytes, true);
    }
    copies_.erase(copies_.begin(), copies_.begin() + static_cast<std::ptrdiff_t>(end));
    group_ends_.erase(group_ends_.begin(),
                      group_ends_.begin() + static_cast<std::ptrdiff_t>(groups));
    for (std::size_t& group_end : group_ends_) group_end -= end;
  }

 private:
  struct Copy {
    void* to;
    std::size_t bytes;
    std::array<unsigned char, 16> data;
  };

  static void check_aligned(const void* address, std::size_t bytes, const char* space) {
    if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
      fail_thread("cp.async of " + std::to_string(bytes) + " bytes at a " + space +
                  " address that is not a multiple of that");
  }

  std::uint64_t cluster_ = 0;
  std::vector<Copy> copies_;
  std::vector<std::size_t> group_ends_;  ///< indices into copies_
};

}  // namespace simt::detail

SIMT_INLINE void cp_async_16(void* shared, const void* global, bool valid) {
  simt::detail::AsyncCopies::mine().start(shared, global, 16, valid);
}

SIMT_INLINE void cp_async_4(void* shared, const void* global, bool valid) {
  simt::detail::AsyncCopies::mine().start(shared, global, 4, valid);
}

inline void cp_async_commit() { simt::detail::AsyncCopies::mine().commit(); }

template <int unfinished>
SIMT_INLINE void cp_async_wait() {
  simt::detail::AsyncCopies::mine().wait(unfinished);
}

#undef SIMT_INLINE
