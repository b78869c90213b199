#pragma once
/// The state of the blocks that run, for executor.cpp, which chooses the threads and switches
/// between them, and meetings.cpp, where they wait for each other.

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/simt/execution/executor.h"
#include "lockstep/simt/execution/fault.h"
#include "lockstep/simt/execution/fiber.h"
#include "lockstep/simt/execution/ready_set.h"
#include "lockstep/simt/include/simt/cluster.h"
#include "lockstep/simt/include/simt/warp.h"

namespace simt::detail {

/// A barrier at which threads wait, of a block or of a cluster.
struct Meeting {
  int waiting = 0;
  int predicates = 0;
  const char* name = nullptr;
  const void* caller = nullptr;  ///< of the first thread
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

/// The blocks that run: one, or those of a cluster; and everything that is kept from block to
/// block. There is one, under the simulator's lock. Threads are numbered through the blocks of a
/// cluster, so that warps are too.
///
/// A fiber runs threads one after another: where one ends, the next that has not begun goes on on
/// the same stack. So a kernel whose threads never meet needs one fiber and no switch.
class Executor {
 public:
  std::string run(const GridRun& run);

  // Called by the thread that runs.
  BarrierCounts barrier(const char* name, bool predicate, const void* caller);
  void cluster_barrier();
  void rendezvous(const char* name, unsigned mask, const void* mine, void* result, AnyFunction all,
                  Complete complete);
  void wait_for(const char* name, const void* what, Describe describe);
  void wake(const void* what);
  void defer(std::function<std::string()> work) { deferred_.push_back(std::move(work)); }

  /// The running thread cannot go on, and none can catch it: the launch ends with this report.
  [[noreturn]] void abandon(const std::string& report);

  int current() const { return current_; }
  /// Of the running thread: what is there is its alone.
  bool on_its_stack(const void* data) const { return threads_[current_].fiber->holds(data); }
  bool on_a_stack(const void* data) const;
  std::uint64_t clusters_begun() const { return clusters_begun_; }
  int rank() const { return blocks_.size() == 1 ? 0 : current_ / block_threads_; }
  int cluster_size() const { return static_cast<int>(blocks_.size()); }
  void* shared(int rank) const { return blocks_[rank].shared.get(); }
  std::size_t shared_bytes() const { return run_->shared_bytes; }
  const KernelInfo& kernel() const { return *run_->kernel; }
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
  BarrierCounts meet(Meeting& meeting, int first, int end, const char* name, bool predicate,
                     const void* caller);
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

  /// Threads of the warp, as bits: at an instruction of the warp; ended, or never there.
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

/// The only one.
Executor& executor();

}  // namespace simt::detail
