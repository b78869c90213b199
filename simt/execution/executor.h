#pragma once
/// Runs one kernel launch to its end: block by block (or cluster by cluster), thread by thread.

#include <cstdint>
#include <string>

#include "lockstep/simt/execution/symbols.h"
#include "lockstep/simt/include/simt/launch.h"
#include "lockstep/simt/include/simt/vector_types.h"
#include "lockstep/simt/simt.h"

namespace simt::detail {

struct GridRun {
  dim3 grid, block, cluster;
  std::size_t shared_bytes;  ///< dynamic
  const KernelInfo* kernel;
  const KernelCall* call;
  int device;
  Order order;
  std::uint64_t seed;  ///< of Order::random
};

/// Returns an empty string, or what went wrong: then the grid was abandoned in the middle, its
/// threads' stacks dropped. The caller holds the simulator's lock.
std::string run_grid(const GridRun& run);

/// splitmix64 (Steele, Lea, Flood 2014): enough randomness for orders and delays.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  std::uint64_t below(std::uint64_t end) { return next() % end; }

 private:
  std::uint64_t state_;
};

}  // namespace simt::detail
