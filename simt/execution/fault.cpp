#include "lockstep/simt/execution/fault.h"

#include <cstdio>
#include <cstring>
#include <vector>

#include "lockstep/simt/include/simt/language.h"

namespace simt::detail {
namespace {

constexpr std::size_t groups_shown = 4;

std::string to_string(uint3 index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

unsigned cluster_size(const BlockState& block) {
  const dim3& size = block.run.cluster;
  return size.x * size.y * size.z;
}

std::string in_kernel(const BlockState& block) {
  return "in kernel " + block.run.kernel->name +
         (cluster_size(block) > 1 ? ", cluster of block " : ", block ") + to_string(blockIdx);
}

/// "thread (0, 0, 0)", and in a cluster of which block.
std::string thread_name(const BlockState& block, int thread) {
  std::string name = "thread " + to_string(block.indices[thread]);
  const std::size_t per_block = block.threads.size() / cluster_size(block);
  if (cluster_size(block) > 1) name += " of block " + std::to_string(thread / per_block);
  return name;
}

/// Threads of the mask that neither wait for it nor have ended.
unsigned missing_lanes(const BlockState& block, int thread) {
  const Waiting& self = block.threads[thread];
  unsigned missing = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const auto other = static_cast<std::size_t>(thread / 32 * 32 + lane);
    if (!(self.mask >> lane & 1u) || other >= block.threads.size()) continue;
    const Waiting& it = block.threads[other];
    const bool came = it.complete == self.complete && it.all == self.all && it.mask == self.mask &&
                      it.name && std::strcmp(it.name, self.name) == 0;
    if (!it.ended && !came) missing |= 1u << lane;
  }
  return missing;
}

std::string what_it_waits_for(const BlockState& block, int thread) {
  const Waiting& self = block.threads[thread];
  if (self.describe) return std::string(self.name) + " " + self.describe(self.what);
  if (!self.complete) return self.name;
  return std::string(self.name) + " with mask " + hexadecimal(self.mask) + " for lanes " +
         hexadecimal(missing_lanes(block, thread)) + " of warp " + std::to_string(thread / 32);
}

}  // namespace

std::string hexadecimal(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

std::string deadlock_report(const BlockState& block, int ended, int at_barrier) {
  const std::string total = std::to_string(block.threads.size());
  const int waiting = static_cast<int>(block.threads.size()) - ended;
  int in_warps = 0;
  for (const Waiting& thread : block.threads) in_warps += thread.complete != nullptr;
  const int elsewhere = waiting - at_barrier - in_warps;
  std::string report = at_barrier > 0 ? "divergent barrier " : "deadlock ";
  report += in_kernel(block) + ": ";
  if (at_barrier > 0) {
    report +=
        std::to_string(at_barrier) + " of " + total + " threads wait at a barrier of the block";
    if (in_warps > 0) report += ", " + std::to_string(in_warps) + " at instructions of a warp";
    if (elsewhere > 0) report += ", " + std::to_string(elsewhere) + " at others";
  } else {
    report += std::to_string(waiting) + " of " + total + " threads wait for " +
              (elsewhere > 0 ? "arrivals" : "lanes") + " that do not come";
  }
  if (ended > 0) report += ", " + std::to_string(ended) + " have ended";

  // Threads that wait for the same are one line.
  struct Group {
    std::string what;
    int first;
    int size;
  };
  std::vector<Group> groups;
  for (int thread = 0; thread < static_cast<int>(block.threads.size()); ++thread) {
    if (!block.threads[thread].name) continue;
    std::string what = what_it_waits_for(block, thread);
    bool known = false;
    for (Group& group : groups)
      if (group.what == what) known = true, ++group.size;
    if (!known) groups.push_back({std::move(what), thread, 1});
  }
  for (std::size_t i = 0; i < groups.size() && i < groups_shown; ++i) {
    report += "\n  " + thread_name(block, groups[i].first);
    if (groups[i].size > 1) report += " and " + std::to_string(groups[i].size - 1) + " more";
    report += (groups[i].size > 1 ? " wait at " : " waits at ") + groups[i].what;
  }
  if (groups.size() > groups_shown)
    report += "\n  and " + std::to_string(groups.size() - groups_shown) + " other kinds of waiting";
  return report;
}

std::string thread_report(const BlockState& block, int thread, const std::string& what) {
  return what + " " + in_kernel(block) + ", thread " + to_string(block.indices[thread]);
}

std::string kernel_report(const BlockState& block, const std::string& what) {
  return what + " " + in_kernel(block);
}

}  // namespace simt::detail
