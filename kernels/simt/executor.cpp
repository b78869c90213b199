#include "lockstep/kernels/simt/executor.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/kernels/simt/fault.h"
#include "lockstep/kernels/simt/fiber.h"
#include "lockstep/kernels/simt/include/simt/cluster.h"
#include "lockstep/kernels/simt/include/simt/language.h"
#include "lockstep/kernels/simt/include/simt/warp.h"
#include "lockstep/kernels/simt/ready_set.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt::detail {
namespace {

/// A barrier at which threads wait, of a block or of a cluster.
struct Meeting {
  int waiting = 0;
  int predicates = 0;
  const char* name = nullptr;
  BarrierCounts counts{};  ///< of the latest; each thread reads it before the next is complete
};

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

/// A block of the cluster.
struct Block {
  uint3 index{};
  std::unique_ptr<void, Free> shared;  ///< dynamic
  int ended = 0;                       ///< of its threads
  Meeting barrier;
};

/// The blocks that run: one, or those of a cluster; and everything that is kept from block to block.
/// There is one, under the simulator's lock. Threads are numbered through the blocks of a cluster, so
/// that warps are too.
///
/// A fiber runs threads one after another: where one ends, the next that has not begun goes on on the
/// same stack. So a kernel whose threads never meet needs one fiber and no switch.
class Executor {
 public:
  std::string run(const GridRun& run);

  // Called by the thread that runs.
  BarrierCounts barrier(const char* name, bool predicate);
  void cluster_barrier();
  void rendezvous(const char* name, unsigned mask, const void* mine, void* result, AnyFunction all,
                  Complete complete);
  void wait_for(const char* name, const void* what, Describe describe);
  void wake(const void* what);
  void defer(std::function<std::string()> work) { deferred_.push_back(std::move(work)); }

  int current() const { return current_; }
  std::uint64_t clusters_begun() const { return clusters_begun_; }
  int rank() const { return blocks_.size() == 1 ? 0 : current_ / block_threads_; }
  int cluster_size() const { return static_cast<int>(blocks_.size()); }
  void* shared(int rank) const { return blocks_[rank].shared.get(); }
  std::size_t shared_bytes() const { return run_->shared_bytes; }
  bool block_has_ended(int rank) const { return blocks_[rank].ended == block_threads_; }

 private:
  void prepare(const GridRun& run);
  void run_cluster(std::uint64_t index);
  void place_blocks(std::uint64_t index);
  void fill_shared_memory();
  [[noreturn]] static void fiber_main();
  void run_threads();
  int pick();
  int draw(int count);
  void run_deferred();
  void become(int thread);
  void leave(Fiber& from);
  void block_this_thread();
  void finish(int thread);
  BarrierCounts meet(Meeting& meeting, int first, int end, const char* name, bool predicate);
  void complete_rendezvous(int warp, unsigned mask);
  Fiber* fresh_fiber();
  void report_deadlock();

  const GridRun* run_ = nullptr;
  std::uint64_t clusters_begun_ = 0;
  int block_threads_ = 0;  ///< in one block
  int count_ = 0;          ///< in the cluster
  Random random_{0};
  std::vector<uint3> indices_;  ///< of each thread in its block
  std::vector<Block> blocks_;

  /// Lanes, as bits: at an instruction of the warp; ended, or never there.
  struct Warp {
    unsigned waiting, absent;
  };

  std::vector<Waiting> threads_;
  std::vector<Warp> warps_;
  ReadySet ready_;  ///< not begun, or to be continued
  int ended_ = 0;
  Meeting cluster_barrier_;
  /// What the hardware does by itself and may do late. It is as late as it can be: nothing of it
  /// happens while a thread can run.
  std::vector<std::function<std::string()>> deferred_;

  int current_ = 0;
  Fiber* host_ = nullptr;
  std::string fault_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
};

/// Thrown through the kernel by a thread that has done what no thread may do.
struct Failure {
  std::string what;
};

/// Names are literals: one may have several addresses.
bool same_name(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }

Executor& executor() {
  static auto& one = *new Executor;
  return one;
}

std::string Executor::run(const GridRun& run) {
  prepare(run);
  const std::uint64_t clusters =
      std::uint64_t{run.grid.x} * run.grid.y * run.grid.z / blocks_.size();
  // In random order: cluster (first + i * step) mod clusters, a permutation if step and clusters have
  // no common divisor.
  std::uint64_t first = 0, step = 1;
  if (run.order == Order::random) {
    first = random_.below(clusters);
    do step = 1 + random_.below(clusters);
    while (std::gcd(step, clusters) != 1);
  }
  for (std::uint64_t i = 0; i < clusters && fault_.empty(); ++i)
    run_cluster(run.order == Order::descending ? clusters - 1 - i : (first + i * step) % clusters);
  blocks_.clear();
  run_ = nullptr;
  return std::exchange(fault_, {});
}

void Executor::prepare(const GridRun& run) {
  run_ = &run;
  random_ = Random(run.seed);
  gridDim = run.grid;
  blockDim = run.block;
  blocks_ = std::vector<Block>(std::size_t{run.cluster.x} * run.cluster.y * run.cluster.z);
  block_threads_ = static_cast<int>(run.block.x * run.block.y * run.block.z);
  count_ = block_threads_ * cluster_size();
  threads_.resize(count_);
  indices_.clear();
  for (Block& block : blocks_) {
    for (unsigned z = 0; z < run.block.z; ++z)
      for (unsigned y = 0; y < run.block.y; ++y)
        for (unsigned x = 0; x < run.block.x; ++x) indices_.push_back({x, y, z});
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, run.shared_bytes) != 0) throw std::bad_alloc();
    block.shared.reset(memory);
  }
}

void Executor::fill_shared_memory() {
  for (const Block& block : blocks_) std::memset(block.shared.get(), 0xff, run_->shared_bytes);
  for (const auto variable : run_->kernel->shared)
    std::memset(variable.data(), 0xff, variable.size());
}

/// Which blocks of the grid those of cluster `index` are: x counts fastest, of clusters in the grid and
/// of blocks in the cluster (%cluster_ctarank).
void Executor::place_blocks(std::uint64_t index) {
  const dim3 &grid = run_->grid, &size = run_->cluster;
  const std::uint64_t across = grid.x / size.x, down = grid.y / size.y;
  const auto x = static_cast<unsigned>(index % across * size.x);
  const auto y = static_cast<unsigned>(index / across % down * size.y);
  const auto z = static_cast<unsigned>(index / across / down * size.z);
  for (unsigned rank = 0; rank < blocks_.size(); ++rank)
    blocks_[rank].index = {x + rank % size.x, y + rank / size.x % size.y,
                           z + rank / size.x / size.y};
}

void Executor::run_cluster(std::uint64_t index) {
  ++clusters_begun_;
  place_blocks(index);
  fill_shared_memory();
  for (Block& block : blocks_) block.ended = 0, block.barrier = {};
  cluster_barrier_ = {};
  std::fill(threads_.begin(), threads_.end(), Waiting{});
  warps_.assign((count_ + 31) / 32, Warp{0, 0});
  if (count_ % 32) warps_.back().absent = ~0u << count_ % 32;
  ready_.clear();
  ready_.insert(0, count_);
  ended_ = 0;
  blockIdx = blocks_[0].index;

  Fiber host;
  host_ = &host;
  become(pick());
  leave(host);  // until all threads have ended, or one has failed
  host_ = nullptr;
  deferred_.clear();
  if (fault_.empty()) return;
  for (const auto& fiber : fibers_) fiber->restart();
  idle_.clear();
  for (const auto& fiber : fibers_) idle_.push_back(fiber.get());
}

void Executor::fiber_main() {
  Fiber::arrived();
  Executor& self = executor();
  self.run_threads();
  self.threads_[self.current_].fiber->switch_to(*self.host_);
  std::abort();  // never continued
}

/// What every fiber does, for ever: runs the current thread, then the next one. Returns if a thread has
/// done what no thread may do.
void Executor::run_threads() {
  for (;;) {
    const int thread = current_;
    Fiber* self = threads_[thread].fiber;
    try {
      (*run_->thread_body)();
    } catch (const Failure& failure) {
      fault_ = thread_report({*run_, threads_, indices_}, thread, failure.what);
      break;
    }
    finish(thread);
    const int next = pick();
    if (next >= 0 && !threads_[next].fiber) {
      threads_[next].fiber = self;
      become(next);
      continue;
    }
    if (next < 0 && fault_.empty() && ended_ < count_) report_deadlock();
    idle_.push_back(self);
    if (next < 0) {
      self->switch_to(*host_);
    } else {
      become(next);
      self->switch_to(*threads_[next].fiber);
    }
  }
}

/// The thread that runs next, taken out of the ready ones; -1 if there is none.
int Executor::pick() {
  while (ready_.size() == 0) {
    if (deferred_.empty() || !fault_.empty()) return -1;
    run_deferred();
  }
  const int thread = run_->order == Order::ascending    ? ready_.first()
                     : run_->order == Order::descending ? ready_.last()
                                                        : ready_.at(draw(ready_.size()));
  ready_.erase(thread);
  return thread;
}

int Executor::draw(int count) {
  return static_cast<int>(random_.below(static_cast<std::uint64_t>(count)));
}

/// One piece of it: the oldest, the newest, or any, as threads are chosen.
void Executor::run_deferred() {
  const int count = static_cast<int>(deferred_.size());
  const int chosen = run_->order == Order::ascending    ? 0
                     : run_->order == Order::descending ? count - 1
                                                        : draw(count);
  const auto work = std::move(deferred_[chosen]);
  deferred_.erase(deferred_.begin() + chosen);
  if (const std::string what = work(); !what.empty())
    fault_ = kernel_report({*run_, threads_, indices_}, what);
}

void Executor::become(int thread) {
  current_ = thread;
  threadIdx = indices_[thread];
  if (blocks_.size() > 1) blockIdx = blocks_[rank()].index;
}

/// Switches to the fiber of the current thread, which gets one if it has not begun.
void Executor::leave(Fiber& from) {
  Waiting& thread = threads_[current_];
  if (!thread.fiber) thread.fiber = fresh_fiber();
  from.switch_to(*thread.fiber);
}

Fiber* Executor::fresh_fiber() {
  if (idle_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>(&Executor::fiber_main));
    return fibers_.back().get();
  }
  Fiber* fiber = idle_.back();
  idle_.pop_back();
  return fiber;
}

/// Lets others run until this thread is ready (it may be already) and its turn comes.
void Executor::block_this_thread() {
  const int self = current_;
  const int next = pick();
  if (next == self) return;
  if (next < 0) {
    if (fault_.empty()) report_deadlock();
    threads_[self].fiber->switch_to(*host_);  // and never back
  }
  become(next);
  leave(*threads_[self].fiber);
}

void Executor::finish(int thread) {
  threads_[thread].ended = true;
  ++ended_;
  ++blocks_[rank()].ended;
  const int warp = thread / 32;
  warps_[warp].absent |= 1u << thread % 32;
  // Lanes of the same warp may have been waiting for this one only, under several masks.
  for (unsigned left = warps_[warp].waiting; left; left &= left - 1) {
    const Waiting& lane = threads_[warp * 32 + std::countr_zero(left)];
    if (lane.complete) complete_rendezvous(warp, lane.mask);
  }
}

BarrierCounts Executor::barrier(const char* name, bool predicate) {
  const int first = rank() * block_threads_;
  return meet(blocks_[rank()].barrier, first, first + block_threads_, name, predicate);
}

void Executor::cluster_barrier() { meet(cluster_barrier_, 0, count_, "barrier.cluster", false); }

/// Waits for all of the threads [first, end), of which this is one.
BarrierCounts Executor::meet(Meeting& meeting, int first, int end, const char* name,
                             bool predicate) {
  if (meeting.waiting == 0) meeting.name = name;
  Waiting& self = threads_[current_];
  self.name = name;
  if (!same_name(name, meeting.name))
    fail_thread(std::string("divergent barrier: ") + name +
                ", while other threads of the block wait at " + meeting.name);
  meeting.predicates += predicate;
  if (++meeting.waiting == end - first) {
    meeting.counts = {end - first, std::exchange(meeting.predicates, 0)};
    meeting.waiting = 0;
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

/// If all lanes of the mask wait at the same instruction or have ended: gives them their results and
/// makes them ready.
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
  any->complete(any->all, inputs, results, present);
  lanes.waiting &= ~present;
  for (unsigned left = present; left; left &= left - 1) {
    const int thread = warp * 32 + std::countr_zero(left);
    threads_[thread].complete = nullptr;
    threads_[thread].name = nullptr;
    ready_.insert(thread);
  }
}

void Executor::report_deadlock() {
  int at_barrier = 0;
  for (const Block& block : blocks_) at_barrier += block.barrier.waiting;
  fault_ = deadlock_report({*run_, threads_, indices_}, ended_, at_barrier);
}

}  // namespace

std::string run_grid(const GridRun& run) { return executor().run(run); }

BarrierCounts block_barrier(const char* name, bool predicate) {
  return executor().barrier(name, predicate);
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

void* dynamic_shared_memory() { return executor().shared(executor().rank()); }

SharedMemory shared_memory_of(unsigned rank) {
  return {static_cast<std::byte*>(executor().shared(static_cast<int>(rank))),
          executor().shared_bytes()};
}

std::uint64_t clusters_begun() { return executor().clusters_begun(); }

void fail_thread(const std::string& what) { throw Failure{what}; }

}  // namespace simt::detail
