#pragma once
/// The accesses of threads, put together to the requests of warps.

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "lockstep/simt/counters/counters.h"

namespace simt::detail::counters {

using simt::counters::Class;
using simt::counters::Sum;

/// Sectors of global memory, each once.
class Sectors {
 public:
  void add(std::uintptr_t sector) { pages_[sector / 64] |= std::uint64_t{1} << sector % 64; }
  std::uint64_t bytes() const;
  void clear() { pages_.clear(); }

 private:
  std::unordered_map<std::uintptr_t, std::uint64_t> pages_;
};

constexpr std::uintptr_t sector_bytes = 32;

/// The accesses of one warp by one execution of an instruction.
struct Request {
  std::array<std::uintptr_t, 32> addresses;  ///< by lane
  std::uint32_t lanes = 0;                   ///< those that have an address
};

/// What a request of `bytes` for each lane costs; a request of global memory adds its sectors.
Sum cost_of_global(const Request& request, unsigned bytes, Sectors& sectors);
Sum cost_of_shared(const Request& request, unsigned bytes);

/// One instruction: the requests that it makes. The threads of a warp come one after another, each
/// perhaps with many executions. A request is counted when all lanes of the warp have come to it,
/// at the latest when the block has ended.
class Instruction {
 public:
  Instruction(Class what, unsigned bytes) : what_(what), bytes_(bytes) {}

  /// The next execution by this thread. `warp_lanes`: those that the warp has.
  void execute(int thread, std::uint32_t warp_lanes, std::uintptr_t address, Sectors& sectors);
  void end_blocks(Sectors& sectors);

  Class what() const { return what_; }
  const Sum& sum() const { return sum_; }
  /// The first requests of the first warp that has made one, and its number.
  const std::vector<Request>& first_requests() const { return first_; }
  int first_warp() const { return first_warp_; }

 private:
  /// Requests of a warp that some lanes have not come to. Those before `first` are counted.
  struct Warp {
    std::array<std::uint32_t, 32> executions{};  ///< of each lane, in this block
    std::uint32_t first = 0;
    std::vector<Request> open;
    std::size_t counted = 0;  ///< of `open`, from its begin
  };

  void count(const Request& request, int warp, Sectors& sectors);

  static constexpr std::size_t most_first = 16;

  Class what_;
  unsigned bytes_;
  Sum sum_;
  std::vector<Request> first_;
  int first_warp_ = -1;
  std::vector<Warp> warps_;
};

}  // namespace simt::detail::counters
