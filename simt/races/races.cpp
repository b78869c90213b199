#include "lockstep/simt/races/races.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/simt/execution/running_blocks.h"
#include "lockstep/simt/races/clocks.h"
#include "lockstep/simt/races/shadow.h"
#include "lockstep/simt/runtime/runtime.h"
#include "lockstep/simt/watch/source_line.h"

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

/// `peer`: of a device that this one may not access. `other`: a variable of the program. `host`:
/// none of these: of a thread (local memory), or the host's.
enum class Space { other, shared, global, peer, host };

std::string text_of(uint3 index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

/// Watches the blocks that run. One, under the simulator's lock.
class Watcher {
 public:
  // ---- memory ----
  void memory_ends(const void* data, std::size_t bytes) {
    undefined_.set(reinterpret_cast<std::uintptr_t>(data), bytes, false);
    latest_ = {};
  }
  Undefined& undefined() { return undefined_; }

  // ---- a launch ----
  void begin_launch(const GridRun& run) {
    run_ = &run;
    firsts_.clear();
    global_shadow_.clear();
    latest_ = {};  // another device may reach it or not
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
    if (space == Space::host && (!in_own_code(caller) || is_of_kernel(address))) return;
    if (space == Space::host || space == Space::peer)
      return report_beyond_reach(by_this_thread(kind, caller), space, bytes);
    const bool reads = kind != Kind::write && kind != Kind::atomic_write;
    const Access now = by_this_thread(kind, caller);
    bool written = space == Space::global && !undefined_.any(address, bytes);
    shadow(space).each(address, bytes, [&](Cell& cell) {
      written |= cell.written;
      compare(cell, now, now, space, bytes);
    });
    if (reads && !written && untouched(address, bytes)) report_unwritten(now, space, bytes);
    if (space == Space::global && now.writes) undefined_.set(address, bytes, false);
  }

  void misaligned(std::uintptr_t address, std::size_t alignment,
                  const std::function<std::string()>& line) {
    const Space space = space_of(address);
    if (space == Space::other || space == Space::host) return;
    executor().abandon("an address that is not a multiple of " + std::to_string(alignment) +
                       " in kernel " + run_->kernel->name + ", by " +
                       thread_name(by_this_thread(Kind::read, nullptr)) + "\n  at " + line());
  }

  void same_barrier(const void* caller, const void* other) {
    if (caller == other || !report_.empty() || !merged_.insert({caller, other}).second) return;
    const std::string here = watch::source_line(caller), there = watch::source_line(other);
    if (here == there) return;
    merged_.erase({caller, other});
    report_ = "two barriers at once in kernel " + run_->kernel->name + ": " +
              thread_name(by_this_thread(Kind::read, caller)) + " waits\n  at " + here +
              "\n  and others of its block\n  at " + there;
  }

  Clocks::Copy copy_begins(std::uintptr_t address, std::size_t bytes, const void* barrier,
                           const void* caller) {
    const Clocks::Copy copy = clocks_.begin_copy(barrier);
    const Access now = by_this_thread(Kind::write, caller);
    Access made = now;
    made.time = copy.time;
    made.thread = copy.thread;
    shared_shadow_.each(address, bytes,
                        [&](Cell& cell) { compare(cell, now, made, Space::shared, bytes); });
    return copy;
  }

 private:
  Access by_this_thread(Kind kind, const void* caller) const {
    const int thread = executor().current();
    return {.time = clocks_.now(thread),
            .blocks = static_cast<std::uint32_t>(firsts_.size()),
            .thread = thread,
            .writes = kind != Kind::read && kind != Kind::atomic_read,
            .atomic = kind != Kind::read && kind != Kind::write,
            .caller = caller};
  }
  Shadow& shadow(Space space) { return space == Space::shared ? shared_shadow_ : global_shadow_; }

  Space space_of(std::uintptr_t address) {
    for (const Range& range : shared_)
      if (range.holds(address)) return Space::shared;
    if (latest_.holds(address)) return Space::global;
    const Allocation* memory = Allocation::holding(reinterpret_cast<const void*>(address));
    if (!memory)
      return in_program(reinterpret_cast<const void*>(address)) ? Space::other : Space::host;
    if (!Runtime::get().can_access(run_->device, *memory)) return Space::peer;
    latest_ = range_of({memory->data, memory->bytes});
    return Space::global;
  }

  /// On a stack, as local memory is; of the launch's arguments.
  bool is_of_kernel(std::uintptr_t address) const {
    const auto* data = reinterpret_cast<const void*>(address);
    const auto arguments = reinterpret_cast<std::uintptr_t>(run_->call->arguments.get());
    return Range{arguments, arguments + run_->call->bytes}.holds(address) ||
           executor().on_a_stack(data);
  }

  bool knows(const Access& now, const Access& earlier) const {
    return earlier.blocks == now.blocks && clocks_.knows(now.thread, earlier.thread, earlier.time);
  }

  /// `made`: what is kept; of the copy engine, it is not what the running thread does.
  void compare(Cell& cell, const Access& now, const Access& made, Space space, std::size_t bytes) {
    std::erase_if(cell.last, [&](const Access& earlier) {
      const bool known = knows(now, earlier);
      if (!known && now.conflicts_with(earlier)) report_race(now, earlier, space, bytes);
      return known && now.covers(earlier);
    });
    cell.written |= now.writes;
    cell.keep(made);
  }

  /// What something unseen has written (memset(), say) is no longer all ones.
  static bool untouched(std::uintptr_t address, std::size_t bytes) {
    const auto* data = reinterpret_cast<const unsigned char*>(address);
    return std::all_of(data, data + bytes, [](unsigned char byte) { return byte == 0xff; });
  }

  // ---- words ----
  std::string thread_name(const Access& access) const {
    if (access.thread >= clocks_.threads()) return "the copy engine";
    const dim3& block = run_->block;
    const auto in_block = static_cast<unsigned>(access.thread % block_threads_);
    const uint3 index{in_block % block.x, in_block / block.x % block.y,
                      in_block / block.x / block.y};
    const std::string first = "block " + text_of(firsts_[access.blocks - 1]);
    return "thread " + text_of(index) + " of " +
           (clocks_.threads() == block_threads_
                ? first
                : "block " + std::to_string(access.thread / block_threads_) +
                      " of the cluster of " + first);
  }

  void report_beyond_reach(const Access& now, Space space, std::size_t bytes) {
    if (!report_.empty()) return;
    report_ = "an access to " + std::to_string(bytes) +
              (space == Space::host ? " bytes of the host's memory, which the device does not know"
                                    : " bytes of another device's memory, without peer access") +
              ", in kernel " + run_->kernel->name + ", by " + thread_name(now) + "\n  at " +
              watch::kernel_line(now.caller);
  }

  void report_unwritten(const Access& now, Space space, std::size_t bytes) {
    if (!report_.empty()) return;
    report_ =
        std::string("a read of ") +
        (space == Space::shared ? "shared memory that no thread" : "global memory that nobody") +
        " has written: " + std::to_string(bytes) + " bytes in kernel " + run_->kernel->name +
        ", by " + thread_name(now) + "\n  at " + watch::kernel_line(now.caller);
  }

  void report_race(const Access& now, const Access& earlier, Space space, std::size_t bytes) {
    if (!report_.empty()) return;
    report_ = "a race for " + std::to_string(bytes) + " bytes of " +
              (space == Space::shared ? "shared" : "global") + " memory in kernel " +
              run_->kernel->name + ": " + thread_name(now) + (now.writes ? " writes" : " reads") +
              "\n  at " + watch::kernel_line(now.caller) + "\n  what " + thread_name(earlier) +
              (earlier.writes ? " has written" : " has read") + "\n  at " +
              watch::kernel_line(earlier.caller) + "\n  and nothing orders the two";
  }

  Range latest_;  ///< of global memory that this launch may access: found last
  Undefined undefined_;

  const GridRun* run_ = nullptr;
  std::vector<uint3> firsts_;  ///< of all blocks of the launch that have run, by cluster
  int block_threads_ = 1;
  std::vector<Range> shared_;
  Shadow shared_shadow_, global_shadow_;
  Clocks clocks_;
  std::string report_;
  std::set<std::pair<const void*, const void*>> merged_;  ///< barriers of one line
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

void memory_ends(const void* data, std::size_t bytes) { watcher().memory_ends(data, bytes); }
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

void same_barrier(const void* caller, const void* other) {
  if (!in_kernel) return;
  in_kernel = false;
  watcher().same_barrier(caller, other);
  in_kernel = true;
}

std::string line_of(const void* caller) {
  return caller ? "\n  at " + watch::kernel_line(caller) : std::string();
}

void arrive(const void* barrier) { watcher().clocks().arrive(executor().current(), barrier); }
void complete(const void* barrier) { watcher().clocks().complete(barrier); }
void wait(const void* barrier) { watcher().clocks().wait(executor().current(), barrier); }

void access(const void* data, std::size_t bytes, Kind kind, const void* caller) {
  if (!in_kernel) return;
  in_kernel = false;  // the watcher shares functions of the standard library with kernels' files
  watcher().access(reinterpret_cast<std::uintptr_t>(data), bytes, kind, caller);
  in_kernel = true;
}

void misaligned(std::uintptr_t address, std::size_t alignment,
                const std::function<std::string()>& line) {
  if (in_kernel) watcher().misaligned(address, alignment, line);
}

Clocks::Copy copy_begins(const void* to, std::size_t bytes, const void* barrier,
                         const void* caller) {
  if (!in_kernel) return {};
  return watcher().copy_begins(reinterpret_cast<std::uintptr_t>(to), bytes, barrier, caller);
}
void copy_arrives(const void* barrier, const Clocks::Copy& copy) {
  watcher().clocks().copy_arrives(barrier, copy);
}

}  // namespace simt::detail::races
