#pragma once
/// Times of kernels as a GPU's figures and a kernel's counts predict them: a roofline with latency,
/// waves and occupancy. A pure function; nothing in it was fitted to a kernel's time.
///
/// 1. Occupancy. Registers, shared memory, threads and blocks say how many blocks share a
///    multiprocessor.
/// 2. A step. The warps of a scheduler take turns at what they wait for: its issue slot, L1 and
///    shared memory, its tensor core. This is a closed queueing network with as many customers as
///    the scheduler has warps, solved exactly by mean value analysis (Reiser and Lavenberg, 1980):
///    with many warps the busiest station decides, with few they also wait for each other. What
///    runs beside them (asynchronous copies, wgmma's reads, bytes from L2) is another bound.
/// 3. Latency. A block that waits for its step's data, and at barriers, is away meanwhile, and the
///    others have the multiprocessor: the same analysis, with blocks as customers. Copies that were
///    started `ahead` steps before are late only if so many steps are shorter than the latency.
/// 4. Waves. Blocks come in rounds that fill the GPU, and a last one that does not.
/// 5. Bytes. No launch is faster than its bytes of L2 and of memory.
///
/// The clock lies between boost and base: the more of the multipliers is at work, the lower.

#include <string_view>

#include "lockstep/tools/predict/gpu.h"
#include "lockstep/tools/predict/work.h"

namespace lockstep::predict {

/// The constants that are not a GPU's: both are the same for all kernels.
inline constexpr double launch_seconds = 2.2e-6;  ///< from one kernel's end to the next one's work
inline constexpr double memory_share = 0.9;       ///< of DRAM's bytes per second, for long streams

enum class Limiter { launch, waves, latency, issue, fma, l1, tensor, l2, neighbours, memory };
std::string_view name_of(Limiter limiter);

struct Prediction {
  double seconds = 0;
  Limiter limiter = Limiter::launch;
  double share_of_roof = 0;  ///< of the larger of the operation's two roofs, at the base clock
  double waves = 0;          ///< rounds of blocks, of the longest launch
  double lost_to_waves = 0;  ///< of the time: what blocks in whole rounds cost
  int blocks = 0;            ///< that share a multiprocessor
  double occupancy = 0;      ///< warps, of those that fit

  double microseconds() const { return seconds * 1e6; }
};

/// Of one launch, without what starts it; share_of_roof is not set.
Prediction predict(const Work& work, const Gpu& gpu);
Prediction predict(const Operation& operation, const Gpu& gpu);

/// The shortest time that the operation can take: its multiply-adds at the base clock, or its
/// fewest bytes.
double roof_seconds(const Operation& operation, const Gpu& gpu);

/// Blocks that share a multiprocessor. Throws UsageError where not even one fits.
int resident_blocks(const Work& work, const Gpu& gpu);

/// Customers per cycle that go round a closed network of stations, each of which takes `demands`
/// cycles of a customer, which is away `delay` cycles per round. `customers` may be a fraction.
double throughput(double customers, const std::vector<double>& demands, double delay);

}  // namespace lockstep::predict
