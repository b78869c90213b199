/// Where threads wait: for all of a block or cluster, for threads of their warp, for something in
/// memory.

#include <bit>
#include <cstring>
#include <utility>

#include "lockstep/simt/counters/observer.h"
#include "lockstep/simt/execution/memory_spaces.h"
#include "lockstep/simt/execution/running_blocks.h"
#include "lockstep/simt/include/simt/atomics.h"
#include "lockstep/simt/races/races.h"
#include "lockstep/simt/watch/watch.h"

namespace simt::detail {
namespace {

/// Names are literals: one may have several addresses.
bool same_name(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

/// Of a warp's instructions __syncwarp alone promises that accesses before are seen by accesses
/// after (Programming Guide, "Warp Vote Functions", "Warp Shuffle Functions": no memory barrier).
/// The operands of wgmma are read by one thread of the simulator for the warp: so the others know.
bool orders_memory(const char* name) {
  return same_name(name, "__syncwarp") || same_name(name, "wgmma.wait_group");
}

}  // namespace

BarrierCounts Executor::barrier(const char* name, bool predicate, const void* caller) {
  const int first = rank() * block_threads_;
  return meet(blocks_[rank()].barrier, first, first + block_threads_, name, predicate, caller);
}

void Executor::cluster_barrier() {
  meet(cluster_barrier_, 0, count_, "barrier.cluster", false, nullptr);
}

/// Waits for all of the threads [first, end), of which this is one.
BarrierCounts Executor::meet(Meeting& meeting, int first, int end, const char* name, bool predicate,
                             const void* caller) {
  if (meeting.waiting == 0) meeting.name = name, meeting.caller = caller;
  Waiting& self = threads_[current_];
  self.name = name;
  if (!same_name(name, meeting.name))
    fail_thread(std::string("divergent barrier: ") + name +
                ", while other threads of the block wait at " + meeting.name);
  races::same_barrier(caller, meeting.caller);
  meeting.predicates += predicate;
  if (++meeting.waiting == end - first) {
    meeting.counts = {end - first, std::exchange(meeting.predicates, 0)};
    meeting.waiting = 0;
    watch::meet(name, first, end);
    ready_.insert(first, end);
  }
  block_this_thread();
  self.name = nullptr;
  return meeting.counts;
}

/// Waits until some thread, or deferred work, wakes those that wait for `what`.
void Executor::wait_for(const char* name, const void* what, Describe describe) {
  Waiting& self = threads_[current_];
  self.name = name;
  self.what = what;
  self.describe = describe;
  block_this_thread();
}

void Executor::wake(const void* what) {
  for (int thread = 0; thread < count_; ++thread) {
    Waiting& it = threads_[thread];
    if (!it.describe || it.what != what) continue;
    it.name = nullptr;
    it.describe = nullptr;
    ready_.insert(thread);
  }
}

void Executor::rendezvous(const char* name, unsigned mask, const void* mine, void* result,
                          AnyFunction all, Complete complete) {
  const int warp = current_ / 32;
  Waiting& self = threads_[current_];
  self.name = name;
  self.mask = mask;
  if (!(mask >> (current_ % 32) & 1u))
    fail_thread(std::string(name) + " with mask " + hexadecimal(mask) +
                ", which lacks the caller's lane");
  self.mine = mine;
  self.result = result;
  self.all = all;
  self.complete = complete;
  warps_[warp].waiting |= 1u << current_ % 32;
  complete_rendezvous(warp, mask);
  block_this_thread();
}

/// If all threads of the mask wait at the same instruction or have ended: gives them their results
/// and makes them ready.
void Executor::complete_rendezvous(int warp, unsigned mask) {
  Warp& lanes = warps_[warp];
  if (mask & ~(lanes.waiting | lanes.absent)) return;
  const void* inputs[32];
  void* results[32];
  unsigned present = 0;
  const Waiting* any = nullptr;
  for (unsigned left = mask & lanes.waiting; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const Waiting& thread = threads_[warp * 32 + lane];
    if (thread.mask != mask) return;
    if (any && (any->all != thread.all || any->complete != thread.complete ||
                std::strcmp(any->name, thread.name) != 0))
      return;
    any = &thread;
    present |= 1u << lane;
    inputs[lane] = thread.mine;
    results[lane] = thread.result;
  }
  if (!any) return;
  counters::instruction(any->name);
  {
    const counters::Pause pause;
    any->complete(any->all, inputs, results, present);
  }
  if (orders_memory(any->name)) races::meet_in_warp(warp, present);
  lanes.waiting &= ~present;
  for (unsigned left = present; left; left &= left - 1) {
    const int thread = warp * 32 + std::countr_zero(left);
    threads_[thread].complete = nullptr;
    threads_[thread].name = nullptr;
    ready_.insert(thread);
  }
}

// ---- what kernels call (include/simt/warp.h, cluster.h) ----------------------------------------

BarrierCounts block_barrier(const char* name, bool predicate) {
  return executor().barrier(name, predicate, __builtin_return_address(0));
}

void cluster_barrier() { executor().cluster_barrier(); }

void warp_rendezvous(const char* name, unsigned mask, const void* mine, void* result,
                     AnyFunction all, Complete complete) {
  executor().rendezvous(name, mask, mine, result, all, complete);
}

void wait_for(const char* name, const void* what, Describe describe) {
  executor().wait_for(name, what, describe);
}

void wake(const void* what) { executor().wake(what); }

void defer(std::function<std::string()> work) { executor().defer(std::move(work)); }

unsigned linear_thread() { return static_cast<unsigned>(executor().current()); }

unsigned cluster_rank() { return static_cast<unsigned>(executor().rank()); }

unsigned cluster_size() { return static_cast<unsigned>(executor().cluster_size()); }

bool block_has_ended(unsigned rank) { return executor().block_has_ended(static_cast<int>(rank)); }

bool is_shared(const void* data, std::size_t bytes) { return in_shared_memory(data, bytes); }

void* dynamic_shared_memory() { return executor().shared(executor().rank()); }

SharedMemory shared_memory_of(unsigned rank) {
  return {static_cast<std::byte*>(executor().shared(static_cast<int>(rank))),
          executor().shared_bytes()};
}

std::uint64_t clusters_begun() { return executor().clusters_begun(); }

void atomic_access(const void* address, std::size_t bytes, const void* caller) {
  watch::access(address, bytes, watch::Kind::atomic, caller);
}

void matrix_row(const void* row, const void* caller) { counters::matrix_row(row, caller); }

void fail_thread(const std::string& what) { throw Failure{what}; }

}  // namespace simt::detail
