#include "lockstep/kernels/simt/executor.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/kernels/simt/fault.h"
#include "lockstep/kernels/simt/fiber.h"
#include "lockstep/kernels/simt/include/simt/language.h"
#include "lockstep/kernels/simt/include/simt/warp.h"
#include "lockstep/kernels/simt/ready_set.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt::detail {
namespace {

/// The block that runs, and everything that is kept from block to block. There is one, under the
/// simulator's lock.
///
/// A fiber runs threads one after another: where one ends, the next that has not begun goes on on the
/// same stack. So a kernel whose threads never meet needs one fiber and no switch.
class Executor {
 public:
  std::string run(const GridRun& run);

  // Called by the thread that runs.
  BarrierCounts barrier(const char* name, bool predicate);
  void rendezvous(const char* name, unsigned mask, const void* mine, void* result, AnyFunction all,
                  Complete complete);
  int current() const { return current_; }
  std::uint64_t blocks_begun() const { return blocks_begun_; }
  void* shared() const { return shared_.get(); }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  void prepare(const GridRun& run);
  void run_block(std::uint64_t index);
  void fill_shared_memory();
  [[noreturn]] static void fiber_main();
  void run_threads();
  int pick();
  void become(int thread);
  void leave(Fiber& from);
  void block_this_thread();
  void finish(int thread);
  void complete_rendezvous(int warp, unsigned mask);
  Fiber* fresh_fiber();
  void report_deadlock();

  const GridRun* run_ = nullptr;
  std::uint64_t blocks_begun_ = 0;
  int count_ = 0;  ///< threads in the block
  Random random_{0};
  std::unique_ptr<void, Free> shared_;
  std::vector<uint3> indices_;  ///< of each thread in the block

  /// Lanes, as bits: at an instruction of the warp; ended, or never there.
  struct Warp {
    unsigned waiting, absent;
  };

  std::vector<Waiting> threads_;
  std::vector<Warp> warps_;
  ReadySet ready_;  ///< not begun, or to be continued
  int ended_ = 0;
  int at_barrier_ = 0;
  int predicates_ = 0;
  const char* barrier_name_ = nullptr;
  BarrierCounts
      counts_{};  ///< of the latest barrier; each thread reads it before the next is complete

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
  const std::uint64_t blocks = std::uint64_t{run.grid.x} * run.grid.y * run.grid.z;
  // In random order: block (first + i * step) mod blocks, a permutation if step and blocks have no
  // common divisor.
  std::uint64_t first = 0, step = 1;
  if (run.order == Order::random) {
    first = random_.below(blocks);
    do step = 1 + random_.below(blocks);
    while (std::gcd(step, blocks) != 1);
  }
  for (std::uint64_t i = 0; i < blocks && fault_.empty(); ++i)
    run_block(run.order == Order::descending ? blocks - 1 - i : (first + i * step) % blocks);
  shared_.reset();
  run_ = nullptr;
  return std::exchange(fault_, {});
}

void Executor::prepare(const GridRun& run) {
  run_ = &run;
  random_ = Random(run.seed);
  gridDim = run.grid;
  blockDim = run.block;
  count_ = static_cast<int>(run.block.x * run.block.y * run.block.z);
  threads_.resize(count_);
  indices_.clear();
  for (unsigned z = 0; z < run.block.z; ++z)
    for (unsigned y = 0; y < run.block.y; ++y)
      for (unsigned x = 0; x < run.block.x; ++x) indices_.push_back({x, y, z});
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, run.shared_bytes) != 0) throw std::bad_alloc();
  shared_.reset(memory);
}

void Executor::fill_shared_memory() {
  std::memset(shared_.get(), 0xff, run_->shared_bytes);
  for (const auto variable : run_->kernel->shared)
    std::memset(variable.data(), 0xff, variable.size());
}

void Executor::run_block(std::uint64_t index) {
  ++blocks_begun_;
  const dim3& grid = run_->grid;
  blockIdx = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
              static_cast<unsigned>(index / grid.x / grid.y)};
  fill_shared_memory();
  std::fill(threads_.begin(), threads_.end(), Waiting{});
  warps_.assign((count_ + 31) / 32, Warp{0, 0});
  if (count_ % 32) warps_.back().absent = ~0u << count_ % 32;
  ready_.fill(count_);
  ended_ = at_barrier_ = predicates_ = 0;

  Fiber host;
  host_ = &host;
  become(pick());
  leave(host);  // until all threads have ended, or one has failed
  host_ = nullptr;
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
    if (next < 0 && ended_ < count_) report_deadlock();
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
  if (ready_.size() == 0) return -1;
  const int thread = run_->order == Order::ascending ? ready_.first()
                     : run_->order == Order::descending
                         ? ready_.last()
                         : ready_.at(static_cast<int>(random_.below(ready_.size())));
  ready_.erase(thread);
  return thread;
}

void Executor::become(int thread) {
  current_ = thread;
  threadIdx = indices_[thread];
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
    report_deadlock();
    threads_[self].fiber->switch_to(*host_);  // and never back
  }
  become(next);
  leave(*threads_[self].fiber);
}

void Executor::finish(int thread) {
  threads_[thread].ended = true;
  ++ended_;
  const int warp = thread / 32;
  warps_[warp].absent |= 1u << thread % 32;
  // Lanes of the same warp may have been waiting for this one only, under several masks.
  for (unsigned left = warps_[warp].waiting; left; left &= left - 1) {
    const Waiting& lane = threads_[warp * 32 + std::countr_zero(left)];
    if (lane.complete) complete_rendezvous(warp, lane.mask);
  }
}

BarrierCounts Executor::barrier(const char* name, bool predicate) {
  if (at_barrier_ == 0) barrier_name_ = name;
  Waiting& self = threads_[current_];
  self.name = name;
  if (!same_name(name, barrier_name_))
    fail_thread(std::string("divergent barrier: ") + name +
                ", while other threads of the block wait at " + barrier_name_);
  predicates_ += predicate;
  if (++at_barrier_ < count_) {
    block_this_thread();
  } else {
    counts_ = {count_, std::exchange(predicates_, 0)};
    at_barrier_ = 0;
    ready_.fill(count_);
    block_this_thread();
  }
  self.name = nullptr;
  return counts_;
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
  fault_ = deadlock_report({*run_, threads_, indices_}, ended_, at_barrier_);
}

}  // namespace

std::string run_grid(const GridRun& run) { return executor().run(run); }

BarrierCounts block_barrier(const char* name, bool predicate) {
  return executor().barrier(name, predicate);
}

void warp_rendezvous(const char* name, unsigned mask, const void* mine, void* result,
                     AnyFunction all, Complete complete) {
  executor().rendezvous(name, mask, mine, result, all, complete);
}

unsigned linear_thread() { return static_cast<unsigned>(executor().current()); }

void* dynamic_shared_memory() { return executor().shared(); }

std::uint64_t blocks_begun() { return executor().blocks_begun(); }

void fail_thread(const std::string& what) { throw Failure{what}; }

}  // namespace simt::detail
