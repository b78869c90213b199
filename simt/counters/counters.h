#pragma once
/// What kernels do to memory, counted while they run: the figures of Nsight Compute that follow
/// from addresses alone, so that a simulator has them exactly.
///
///     simt::counters::start();
///     launch<my_kernel>(...);
///     cudaDeviceSynchronize();
///     for (const auto& launch : simt::counters::stop())
///       std::cout << launch.kernel << ' ' << launch.of(Class::global_load).sectors;
///
/// A *request* is one memory instruction of a warp: the n-th execution of one instruction by each
/// of the warp's threads. A *sector* is 32 bytes of global memory, aligned; a request costs as many
/// as it touches. A *wavefront* is one pass over shared memory, which has 32 banks of 4 bytes: a
/// request needs as many as there are different words in one bank. Accesses of 8 bytes are served
/// by half warps, those of 16 bytes by quarters of a warp. (CUDA C++ Programming Guide, "Global
/// Memory" and "Shared Memory"; CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory";
/// Nsight Compute, "Memory Tables".)
///
/// Not counted: hits in caches, rows of DRAM, registers that are spilled, local and constant
/// memory, kernels' parameters, mbarriers. Where threads of a warp go through a loop a different
/// number of times, or in turns, the n-th executions are taken for one request, as on a GPU whose
/// threads meet again. Of a structure that is no power of two bytes, pieces of at most 16 bytes are
/// requests of their own.
///
/// Counting works in a build that watches accesses (LOCKSTEP_RACES). All functions may be called
/// from any thread, but what other threads launch meanwhile is counted, too.

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace simt::counters {

/// `copy_load` and `copy_store` are the two halves of cp.async: what it reads of global memory and
/// writes to shared memory. A matrix load (ldmatrix) is a shared load of 16 bytes.
enum class Class {
  global_load,
  global_store,
  global_atomic,
  copy_load,
  copy_store,
  shared_load,
  shared_store,
  shared_atomic
};
constexpr int classes = 8;
constexpr bool is_global(Class what) { return what <= Class::copy_load; }
/// "global load".
const char* name_of(Class what);

struct Sum {
  std::uint64_t requests = 0;
  std::uint64_t bytes = 0;  ///< that the threads asked for; what several ask for counts for each
  std::uint64_t sectors = 0, fewest_sectors = 0;        ///< of global memory
  std::uint64_t wavefronts = 0, fewest_wavefronts = 0;  ///< of shared memory

  Sum& operator+=(const Sum& other);
};

/// The requests of one place in the sources.
struct Line {
  const void* caller;  ///< for place_of()
  Class what;
  Sum sum;
};

/// One of the first requests of an instruction: by the first warp that makes one, in the blocks
/// that run first. It is kept whole, for pictures of which thread touches what.
struct Traced {
  const void* caller;  ///< for place_of()
  Class what;
  unsigned bytes;                        ///< of each lane
  int warp;                              ///< counted through the blocks that run at once
  int memory;                            ///< which one, in the order of first use; from 0
  std::array<std::int64_t, 32> offsets;  ///< of lanes, from that memory's begin; -1: no access
};

/// 16 bytes that the copy engine (TMA) moves: offsets in its matrix, and in its box in shared
/// memory.
struct TracedChunk {
  std::int64_t from, to;
};

struct Launch {
  std::string kernel{};                       ///< demangled, with its template arguments
  std::array<unsigned, 3> grid{}, block{};    ///< x, y, z
  std::array<Sum, classes> sums{};            ///< by Class
  std::uint64_t read = 0, written = 0;        ///< bytes of the distinct sectors of global memory
  std::uint64_t copied_4 = 0, copied_16 = 0;  ///< bytes written by cp.async of this width
  std::uint64_t box_bytes = 0;                ///< read by the copy engine (TMA)
  std::uint64_t operand_bytes = 0;            ///< of shared memory, read by wgmma
  std::map<std::string, std::uint64_t> instructions{};  ///< barriers of blocks; of warps: shuffles,
                                                        ///< votes, ldmatrix, mma, ..., by name
  std::vector<Line> lines{};                            ///< in the order of the program's code
  std::vector<Traced> traced{};                         ///< in the same order
  std::vector<TracedChunk> first_chunks{};              ///< of the first box, at most 8 rows

  const Sum& of(Class what) const { return sums[static_cast<int>(what)]; }
  std::uint64_t barriers() const;  ///< of blocks, of all blocks together
  std::uint64_t shuffles() const;
};

/// Whether this build can count.
bool available();

/// From the next launch on. Forgets what was counted before.
void start();

/// The launches since start(), in the order in which they ran.
std::vector<Launch> stop();

/// "FILE:LINE" of a Line. It starts a process.
std::string place_of(const void* caller);
/// The same of many, by one process.
std::vector<std::string> places_of(const std::vector<const void*>& callers);

}  // namespace simt::counters
