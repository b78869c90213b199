#include "lockstep/simt/races/races.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/simt/execution/running_blocks.h"
#include "lockstep/simt/races/clocks.h"
#include "lockstep/simt/races/shadow.h"
#include "lockstep/simt/races/source_line.h"

namespace simt::detail::races {
namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;
  bool holds(std::uintptr_t address) const { return begin <= address && address < end; }
};

Range range_of(std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  return {begin, begin + memory.size()};
}

enum class Space { other, shared, global };

std::string text_of(uint3 index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

/// Watches the blocks that run. One, under the simulator's lock.
class Watcher {
 public:
  // ---- memory ----
  void memory_begins(const void* data, std::size_t bytes) {
    const Range range = range_of({static_cast<const std::byte*>(data), bytes});
    global_[range.begin] = range.end;
  }
  void memory_ends(const void* data) {
    const auto it = global_.find(reinterpret_cast<std::uintptr_t>(data));
    if (it == global_.end()) return;
    undefined_.set(it->first, it->second - it->first, false);
    global_.erase(it);
    latest_ = {};
  }
  Undefined& undefined() { return undefined_; }

  // ---- a launch ----
  void begin_launch(const GridRun& run) {
    run_ = &run;
    firsts_.clear();
    global_shadow_.clear();
  }

  void begin_blocks(uint3 index, std::span<const std::span<std::byte>> shared) {
    firsts_.push_back(index);
    shared_shadow_.clear();
    shared_.clear();
    for (const auto memory : shared) shared_.push_back(range_of(memory));
    for (const auto variable : run_->kernel->shared) shared_.push_back(range_of(variable));
    const dim3& block = run_->block;
    block_threads_ = static_cast<int>(block.x * block.y * block.z);
    clocks_.begin(block_threads_ * static_cast<int>(shared.size()));
  }

  std::string end_blocks() { return std::exchange(report_, {}); }

  Clocks& clocks() { return clocks_; }

  // ---- accesses ----
  void access(std::uintptr_t address, std::size_t bytes, Kind kind, const void* caller) {
    const Space space = space_of(address);
    if (space == Space::other) return;
    const int thread = executor().current();
    const bool atomic = kind != Kind::read && kind != Kind::write;
    const Access now{clocks_.now(thread), running_blocks(), thread, atomic, caller};
    if (space == Space::global) check_defined(address, bytes, kind, now);
    shadow(space).each(address, bytes, [&](Cell& cell) {
      if (kind == Kind::read || kind == Kind::atomic_read)
        read(cell, now, space, bytes);
      else
        write(cell, now, now, space, bytes);
    });
  }

  void misaligned(std::uintptr_t address, std::size_t alignment, const std::string& line) {
    if (space_of(address) == Space::other) return;
    executor().abandon("an address that is not a multiple of " + std::to_string(alignment) +
                       " in kernel " + run_->kernel->name + ", by " +
                       thread_name({1, running_blocks(), executor().current()}) + "\n  at " + line);
  }

  std::uint32_t copy_begins(std::uintptr_t address, std::size_t bytes, const void* caller) {
    const int thread = executor().current();
    const Access now{clocks_.now(thread), running_blocks(), thread, false, caller};
    const std::uint32_t ticket = clocks_.begin_copy();
    const Access copy{ticket, running_blocks(), clocks_.engine(), false, caller};
    shared_shadow_.each(address, bytes,
                        [&](Cell& cell) { write(cell, now, copy, Space::shared, bytes); });
    return ticket;
  }

 private:
  std::uint32_t running_blocks() const { return static_cast<std::uint32_t>(firsts_.size()); }
  Shadow& shadow(Space space) { return space == Space::shared ? shared_shadow_ : global_shadow_; }

  Space space_of(std::uintptr_t address) {
    for (const Range& range : shared_)
      if (range.holds(address)) return Space::shared;
    if (!latest_.holds(address)) {
      const auto after = global_.upper_bound(address);
      if (after == global_.begin()) return Space::other;
      const Range before{std::prev(after)->first, std::prev(after)->second};
      if (!before.holds(address)) return Space::other;
      latest_ = before;
    }
    return Space::global;
  }

  /// Whether all threads have it behind them, or this one has.
  bool behind(const Access& earlier, const Access& now) const {
    return earlier.time == 0 || (earlier.blocks == now.blocks &&
                                 clocks_.knows(now.thread, earlier.thread, earlier.time));
  }

  void read(Cell& cell, const Access& now, Space space, std::size_t bytes) {
    if (space == Space::shared && cell.write.time == 0)
      report("a read of shared memory that no thread has written", now, bytes);
    compare_with_writes(cell, now, "reads", space, bytes);
    Access& kept =
        !cell.reads[0].time || behind(cell.reads[0], now) ? cell.reads[0] : cell.reads[1];
    kept = now;
  }

  /// `made`: what is kept; of the copy engine, it is not what `now` is.
  void write(Cell& cell, const Access& now, const Access& made, Space space, std::size_t bytes) {
    compare_with_writes(cell, now, "writes", space, bytes);
    for (Access& earlier : cell.reads) {
      if (!behind(earlier, now) && !(earlier.atomic && now.atomic))
        report_race(now, "writes", earlier, "has read", space, bytes);
      earlier = {};
    }
    if (!now.atomic) cell.other_atomic = {};
    if (now.atomic && !behind(cell.write, now)) cell.other_atomic = cell.write;
    cell.write = made;
  }

  void compare_with_writes(const Cell& cell, const Access& now, const char* does, Space space,
                           std::size_t bytes) {
    for (const Access* written : {&cell.write, &cell.other_atomic})
      if (!behind(*written, now) && !(written->atomic && now.atomic))
        report_race(now, does, *written, "has written", space, bytes);
  }

  void check_defined(std::uintptr_t address, std::size_t bytes, Kind kind, const Access& now) {
    // What something unseen has written since is defined: it no longer is all ones.
    const auto untouched = [&] {
      const auto* data = reinterpret_cast<const unsigned char*>(address);
      return std::all_of(data, data + bytes, [](unsigned char byte) { return byte == 0xff; });
    };
    const bool reads_only = kind == Kind::read || kind == Kind::atomic_read;
    if (kind != Kind::write && kind != Kind::atomic_write && undefined_.any(address, bytes) &&
        untouched())
      report("a read of global memory that nobody has written", now, bytes);
    if (!reads_only) undefined_.set(address, bytes, false);
  }

  // ---- words ----
  std::string thread_name(const Access& access) const {
    if (access.thread >= clocks_.engine()) return "the copy engine";
    const dim3& block = run_->block;
    const auto in_block = static_cast<unsigned>(access.thread % block_threads_);
    const uint3 index{in_block % block.x, in_block / block.x % block.y,
                      in_block / block.x / block.y};
    std::string name = "thread " + text_of(index) + " of block ";
    const int rank = access.thread / block_threads_;
    return name + text_of(firsts_[access.blocks - 1]) +
           (rank > 0 ? " + " + std::to_string(rank) : "");
  }

  void report(const std::string& what, const Access& now, std::size_t bytes) {
    if (!report_.empty()) return;
    report_ = what + ": " + std::to_string(bytes) + " bytes in kernel " + run_->kernel->name +
              ", by " + thread_name(now) + "\n  at " + source_line(now.caller);
  }

  void report_race(const Access& now, const char* does, const Access& earlier, const char* did,
                   Space space, std::size_t bytes) {
    if (!report_.empty()) return;
    report_ = "a race for " + std::to_string(bytes) + " bytes of " +
              (space == Space::shared ? "shared" : "global") + " memory in kernel " +
              run_->kernel->name + ": " + thread_name(now) + " " + does + "\n  at " +
              source_line(now.caller) + "\n  what " + thread_name(earlier) + " " + did + "\n  at " +
              source_line(earlier.caller) + "\n  and nothing between puts one after the other";
  }

  std::map<std::uintptr_t, std::uintptr_t> global_;  ///< from begin to end
  Range latest_;                                     ///< of global_, found last
  Undefined undefined_;

  const GridRun* run_ = nullptr;
  std::vector<uint3> firsts_;  ///< of all blocks of the launch that have run, by cluster
  int block_threads_ = 1;
  std::vector<Range> shared_;
  Shadow shared_shadow_, global_shadow_;
  Clocks clocks_;
  std::string report_;
};

Watcher& watcher() {
  static auto& one = *new Watcher;
  return one;
}

/// Whether this host thread runs the blocks of a launch that is watched.
thread_local bool in_kernel = false;
bool wanted = true;

}  // namespace

bool watched() { return true; }
void watch(bool on) { wanted = on; }

void memory_begins(const void* data, std::size_t bytes) { watcher().memory_begins(data, bytes); }
void memory_ends(const void* data) { watcher().memory_ends(data); }
void undefined(const void* data, std::size_t bytes) {
  watcher().undefined().set(reinterpret_cast<std::uintptr_t>(data), bytes, true);
}
void defined(const void* data, std::size_t bytes) {
  watcher().undefined().set(reinterpret_cast<std::uintptr_t>(data), bytes, false);
}

void begin_launch(const GridRun& run) { watcher().begin_launch(run); }
void begin_blocks(uint3 index, std::span<const std::span<std::byte>> shared) {
  watcher().begin_blocks(index, shared);
  in_kernel = wanted;
}
std::string end_blocks() {
  in_kernel = false;
  return watcher().end_blocks();
}

void meet(int first, int end) {
  static std::vector<int> threads;
  threads.resize(end - first);
  for (int i = first; i < end; ++i) threads[i - first] = i;
  watcher().clocks().meet(threads);
}

void meet_in_warp(int warp, unsigned threads) {
  static std::vector<int> met;
  met.clear();
  for (int lane = 0; lane < 32; ++lane)
    if (threads >> lane & 1u) met.push_back(warp * 32 + lane);
  watcher().clocks().meet(met);
}

void arrive(const void* barrier) { watcher().clocks().arrive(executor().current(), barrier); }
void complete(const void* barrier) { watcher().clocks().complete(barrier); }
void wait(const void* barrier) { watcher().clocks().wait(executor().current(), barrier); }

void access(const void* data, std::size_t bytes, Kind kind, const void* caller) {
  if (in_kernel && !executor().on_its_stack(data))
    watcher().access(reinterpret_cast<std::uintptr_t>(data), bytes, kind, caller);
}

void misaligned(std::uintptr_t address, std::size_t alignment, const std::string& line) {
  if (in_kernel) watcher().misaligned(address, alignment, line);
}

std::uint32_t copy_begins(const void* to, std::size_t bytes, const void* caller) {
  if (!in_kernel) return 0;
  return watcher().copy_begins(reinterpret_cast<std::uintptr_t>(to), bytes, caller);
}
void copy_arrives(const void* barrier, std::uint32_t ticket) {
  watcher().clocks().copy_arrives(barrier, ticket);
}

}  // namespace simt::detail::races
