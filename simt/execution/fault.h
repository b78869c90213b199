#pragma once
/// The words in which the simulator reports a kernel that cannot go on.

#include <span>
#include <string>

#include "lockstep/simt/execution/executor.h"
#include "lockstep/simt/include/simt/cluster.h"
#include "lockstep/simt/include/simt/warp.h"

namespace simt::detail {

class Fiber;

/// One thread of the block, or cluster: whether it has ended, and what it waits for if it does.
struct Waiting {
  Fiber* fiber = nullptr;  ///< null: has not begun
  bool ended = false;
  const char* name = nullptr;  ///< of the barrier or instruction; null: waits for none
  // An instruction of a warp:
  unsigned mask = 0;
  const void* mine = nullptr;
  void* result = nullptr;
  AnyFunction all = nullptr;
  Complete complete = nullptr;  ///< null: waits for none
  // Something that is woken, an mbarrier:
  const void* what = nullptr;
  Describe describe = nullptr;  ///< null: waits for none
};

struct BlockState {
  const GridRun& run;
  std::span<const Waiting> threads;
  std::span<const uint3> indices;
};

/// No thread can run, and some have not ended.
std::string deadlock_report(const BlockState& block, int ended, int at_barrier);

/// One thread has done what no thread may do.
std::string thread_report(const BlockState& block, int thread, const std::string& what);

/// Something went wrong while no thread ran.
std::string kernel_report(const BlockState& block, const std::string& what);

std::string hexadecimal(unsigned mask);

/// While it lives, a signal that ends the process in this host thread first prints where the kernel
/// was, unless the program has a handler of its own, as AddressSanitizer does.
class CrashReports {
 public:
  explicit CrashReports(const char* kernel);  ///< its name, which outlives this
  ~CrashReports();
  CrashReports(const CrashReports&) = delete;
  CrashReports& operator=(const CrashReports&) = delete;
};

}  // namespace simt::detail
