#include "lockstep/simt/execution/executor.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <span>
#include <utility>

#include "lockstep/simt/execution/running_blocks.h"
#include "lockstep/simt/include/simt/language.h"
#include "lockstep/simt/include/simt/warpgroup.h"
#include "lockstep/simt/races/races.h"
#include "lockstep/simt/watch/watch.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace simt::detail {

Executor& executor() {
  static auto& one = *new Executor;
  return one;
}

std::string Executor::run(const GridRun& run) {
  prepare(run);
  const CrashReports crashes(run.kernel->name.c_str());
  const std::uint64_t clusters =
      std::uint64_t{run.grid.x} * run.grid.y * run.grid.z / blocks_.size();
  // In random order: cluster (first + i * step) mod clusters, a permutation if step and clusters
  // have no common divisor.
  std::uint64_t first = 0, step = 1;
  if (run.order == Order::random) {
    first = random_.below(clusters);
    do step = 1 + random_.below(clusters);
    while (std::gcd(step, clusters) != 1);
  }
  for (std::uint64_t i = 0; i < clusters && fault_.empty(); ++i)
    run_cluster(run.order == Order::descending ? clusters - 1 - i : (first + i * step) % clusters);
  watch::end_launch();
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
  watch::begin_launch(run);
}

void Executor::fill_shared_memory() {
  for (const Block& block : blocks_) std::memset(block.shared.get(), 0xff, run_->shared_bytes);
  for (const auto variable : run_->kernel->shared)
    std::memset(variable.data(), 0xff, variable.size());
}

/// Which blocks of the grid those of cluster `index` are: x counts fastest, of clusters in the grid
/// and of blocks in the cluster (%cluster_ctarank).
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
  std::vector<std::span<std::byte>> shared;
  for (const Block& block : blocks_)
    shared.emplace_back(static_cast<std::byte*>(block.shared.get()), run_->shared_bytes);
  watch::begin_blocks(blockIdx, shared);

  struct End {  // also if there is no memory for a stack
    ~End() { watch::end_blocks(); }
  } const end;
  Fiber host;
  host_ = &host;
  become(pick());
  leave(host);  // until all threads have ended, or one has failed
  host_ = nullptr;
  deferred_.clear();
  // A fault may be the race's consequence: both are told.
  if (const std::string race = watch::end_blocks(); !race.empty())
    fault_ += (fault_.empty() ? "" : "\n") + race;
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

/// What every fiber does, for ever: runs the current thread, then the next one. Returns if a thread
/// has done what no thread may do.
void Executor::run_threads() {
  for (;;) {
    const int thread = current_;
    Fiber* self = threads_[thread].fiber;
    try {
      run_->call->run(run_->call->arguments.get());
      end_products();
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
  const std::string what = work();
  if (what.empty()) return;
  blockIdx = blocks_[0].index;
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

bool Executor::on_a_stack(const void* data) const {
  return std::any_of(fibers_.begin(), fibers_.end(),
                     [data](const auto& fiber) { return fiber->holds(data); });
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
  // Threads of the same warp may have been waiting for this one only, under several masks.
  for (unsigned left = warps_[warp].waiting; left; left &= left - 1) {
    const Waiting& lane = threads_[warp * 32 + std::countr_zero(left)];
    if (lane.complete) complete_rendezvous(warp, lane.mask);
  }
}

void Executor::abandon(const std::string& report) {
  fault_ = report;
  threads_[current_].fiber->switch_to(*host_);
  std::abort();  // never continued
}

void Executor::report_deadlock() {
  int at_barrier = 0;
  const void* barrier = nullptr;
  for (const Block& block : blocks_) {
    at_barrier += block.barrier.waiting;
    if (block.barrier.waiting > 0 && !barrier) barrier = block.barrier.caller;
  }
  blockIdx = blocks_[0].index;
  fault_ =
      deadlock_report({*run_, threads_, indices_}, ended_, at_barrier) + races::line_of(barrier);
}

std::string run_grid(const GridRun& run) { return executor().run(run); }

}  // namespace simt::detail
