#pragma once
/// What a rank of `bench allreduce` does, whoever carries its all-reduce out. It waits for its turn
/// in a blocking read, so that contenders which are not being timed use no core:
///
///   read from FOLDER/RANK   then
///   verify COUNT            all-reduces COUNT elements that are unique per rank and index, and
///                           compares every sum; rank 0 answers `verified COUNT`
///   calls K                 all-reduces that many elements K times; rank 0 answers `us X`,
///                           microseconds per call
///
/// Rank 0's answers go to stdout, the first is `ready NAME`. A wrong sum is an exception, which
/// ends the rank. At end of input the rank is done. bench/peers/gloo_allreduce.py does the same in
/// Python.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace bench {

/// One rank's end of an all-reduce of f32, with separate memory for the elements.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Writes and reads elements [begin, begin + values.size()) of the memory.
  virtual void put(std::int64_t begin, std::span<const float> values) = 0;
  virtual void get(std::int64_t begin, std::span<float> values) = 0;
  /// The first `count` elements := their sums over the ranks.
  virtual void all_reduce(std::int64_t count) = 0;
  virtual void barrier() = 0;
  /// Waits for what all_reduce has only enqueued, on a GPU.
  virtual void finish() {}
  /// False if it moves bytes and adds nothing: then there is nothing to verify.
  virtual bool sums() const { return true; }
};

/// put() and get() of memory that the host reaches.
void store(std::span<float> memory, std::int64_t begin, std::span<const float> values);
void load(std::span<const float> memory, std::int64_t begin, std::span<float> values);

/// Takes turns until the end of input. Throws Error for a wrong sum.
void serve(Engine& engine, std::string_view name, const std::string& folder);

// ---- Who there is. Each runs one rank, or all of them, until the end of input. ----

struct Place {
  std::string comm, transport;
  int ranks = 2;
  std::int64_t capacity = 0;  ///< elements of each rank's memory
  std::string folder;         ///< of what serve() reads
};

/// Ranks of World (comm and transport as JoinOptions takes them). A combination that there is not
/// is told with `cannot WHY` instead of `ready NAME`.
int run_lockstep(const Place& place, int argc, const char* const* argv);
/// What this machine does if nothing but the necessary happens: "bound" for transport "shm" or
/// "tcp"; "tags", what our tags alone cost in tcp; "poly1305", what those of OpenSSL would.
int run_bound(const Place& place);

}  // namespace bench
