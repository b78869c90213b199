/// cp.async: the copies that threads have under way.

#include "lockstep/simt/include/simt/async_copy.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/simt/execution/limits.h"
#include "lockstep/simt/execution/memory_spaces.h"
#include "lockstep/simt/include/simt/warp.h"
#include "lockstep/simt/races/races.h"
#include "lockstep/simt/watch/watch.h"

namespace simt::detail {
namespace {

void check_address(const void* address, std::size_t bytes, const char* space, bool inside) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
  if (aligned && inside) return;
  fail_thread("cp.async of " + std::to_string(bytes) + " bytes " +
              (aligned ? std::string("whose ") + space + " address is not in " + space + " memory"
                       : std::string("at a ") + space + " address that is not a multiple of that"));
}

/// Of one thread.
class AsyncCopies {
 public:
  /// Of the running thread. What an earlier block left behind is dropped.
  static AsyncCopies& mine() {
    static std::array<AsyncCopies, limits::cluster_threads> all;
    AsyncCopies& copies = all[linear_thread()];
    if (copies.cluster_ != clusters_begun()) {
      copies.copies_.clear();
      copies.group_ends_.clear();
      copies.cluster_ = clusters_begun();
    }
    return copies;
  }

  /// A copy may write from its begin on, and until it has been waited for. `caller`: for reports.
  void start(void* shared, const void* global, std::size_t bytes, bool valid, const void* caller) {
    check_address(shared, bytes, "shared", in_shared_memory(shared, bytes));
    check_address(global, bytes, "global", !valid || in_global_memory(global, bytes));
    Copy copy{shared, bytes, {}};
    if (valid) std::memcpy(copy.data.data(), global, bytes);
    watch::copy_begins(shared, valid ? global : nullptr, bytes, caller);
    std::memset(shared, 0xff, bytes);
    copies_.push_back(copy);
  }

  void commit() { group_ends_.push_back(copies_.size()); }

  void wait(std::size_t unfinished, const void* caller) {
    if (group_ends_.size() <= unfinished) return;
    const std::size_t groups = group_ends_.size() - unfinished, end = group_ends_[groups - 1];
    for (std::size_t i = 0; i < end; ++i) {
      std::memcpy(copies_[i].to, copies_[i].data.data(), copies_[i].bytes);
      races::access(copies_[i].to, copies_[i].bytes, races::Kind::write, caller);
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

  std::uint64_t cluster_ = 0;
  std::vector<Copy> copies_;
  std::vector<std::size_t> group_ends_;  ///< indices into copies_
};

}  // namespace

void start_copy(void* shared, const void* global, std::size_t bytes, bool valid) {
  AsyncCopies::mine().start(shared, global, bytes, valid, __builtin_return_address(0));
}

void commit_copies() { AsyncCopies::mine().commit(); }

void wait_for_copies(std::size_t unfinished) {
  AsyncCopies::mine().wait(unfinished, __builtin_return_address(0));
}

}  // namespace simt::detail
