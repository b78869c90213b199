/// Barriers in shared memory: PTX ISA 9.0, section 9.7.13.15.

#include "lockstep/simt/execution/mbarrier.h"

#include <bit>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/simt/include/simt/cluster.h"
#include "lockstep/simt/include/simt/copy_engine.h"
#include "lockstep/simt/include/simt/warp.h"
#include "lockstep/simt/races/races.h"

namespace simt::detail {
namespace {

constexpr std::int64_t most = (1 << 20) - 1;  ///< arrivals, and bytes: 9.7.13.15.2

/// The 64 bits of a barrier. (What a GPU keeps where is not documented; the numbers are.)
struct State {
  std::uint64_t parity : 1;     ///< of the phase under way
  std::uint64_t expected : 20;  ///< arrivals in each phase
  std::uint64_t missing : 20;   ///< arrivals in this one
  std::int64_t bytes : 21;      ///< announced, and not copied yet
  std::uint64_t mark : 2;       ///< 1: initialized, 2: and fenced; else it is no barrier
};
static_assert(sizeof(State) == 8);

State load(const void* barrier) {
  std::uint64_t bits;
  std::memcpy(&bits, barrier, sizeof bits);
  return std::bit_cast<State>(bits);
}

void store(void* barrier, State state) {
  const auto bits = std::bit_cast<std::uint64_t>(state);
  std::memcpy(barrier, &bits, sizeof bits);
}

/// Ends the phase if all that it waits for has come.
void settle(void* barrier, State state) {
  const bool complete = state.missing == 0 && state.bytes == 0;
  if (complete) {
    state.parity ^= 1;
    state.missing = state.expected;
  }
  store(barrier, state);
  if (!complete) return;
  races::complete(barrier);
  wake(barrier);
}

bool is_barrier(State state) { return state.mark == 1 || state.mark == 2; }

/// Barriers that were initialized in this cluster of blocks, and by which of its threads.
struct Initialized {
  std::uint64_t cluster = 0;
  std::set<const void*> all{};
  std::vector<std::pair<unsigned, void*>> unfenced{};
};
Initialized initialized;

std::string describe(const void* barrier) {
  const State state = load(barrier);
  return "for a barrier whose phase (parity " + std::to_string(state.parity) + ") lacks " +
         std::to_string(state.missing) + " of " + std::to_string(state.expected) +
         " arrivals and " + std::to_string(state.bytes) + " bytes";
}

}  // namespace

std::byte* mbarrier_in(unsigned rank, const void* barrier, const char* name) {
  const std::uint32_t address = shared_address(barrier);
  if (rank >= cluster_size())
    fail_thread(std::string(name) + " on a barrier of block " + std::to_string(rank) +
                " of a cluster of " + std::to_string(cluster_size()));
  if (block_has_ended(rank)) fail_thread(std::string(name) + " on a barrier of a block that ended");
  std::byte* there = shared_at(rank, address, sizeof(State));
  if (address % sizeof(State) != 0 || !there)
    fail_thread(std::string(name) + " on a barrier that is not 8 aligned bytes of shared memory");
  if (!is_barrier(load(there))) fail_thread(std::string(name) + " on a barrier before its init");
  const bool elsewhere = rank != cluster_rank() || std::string_view(name).starts_with("cp.async");
  if (elsewhere && load(there).mark != 2)
    fail_thread(std::string(name) + " on a barrier without a fence.mbarrier_init after its init");
  return there;
}

std::string mbarrier_copied(std::byte* barrier, std::int64_t bytes) {
  State state = load(barrier);
  if (!is_barrier(state)) return "the barrier of a copy was overwritten";
  if (state.bytes - bytes < -most) return "a barrier's count of bytes is beyond its range";
  state.bytes -= bytes;
  settle(barrier, state);
  return "";
}

void mbarrier_init(void* barrier, std::uint32_t arrivals) {
  if (arrivals < 1 || arrivals > most)
    fail_thread("mbarrier.init for " + std::to_string(arrivals) + " arrivals");
  if (shared_address(barrier) % sizeof(State) != 0)
    fail_thread("mbarrier.init of a barrier that is not aligned to 8 bytes");
  races::access(barrier, sizeof(State), races::Kind::write, __builtin_return_address(0));
  if (initialized.cluster != clusters_begun()) initialized = {.cluster = clusters_begun()};
  if (!initialized.all.insert(barrier).second)
    fail_thread("mbarrier.init of a barrier that was initialized before");
  initialized.unfenced.emplace_back(linear_thread(), barrier);
  store(barrier, {.parity = 0, .expected = arrivals, .missing = arrivals, .bytes = 0, .mark = 1});
}

void mbarrier_fence_init() {
  if (initialized.cluster != clusters_begun()) return;
  std::erase_if(initialized.unfenced, [](const auto& one) {
    if (one.first != linear_thread()) return false;
    State state = load(one.second);
    state.mark = 2;
    store(one.second, state);
    return true;
  });
}

void mbarrier_arrive(unsigned rank, const void* barrier, std::uint32_t bytes) {
  std::byte* there = mbarrier_in(rank, barrier, "mbarrier.arrive");
  State state = load(there);
  if (state.missing == 0)
    fail_thread("mbarrier.arrive: more than the " + std::to_string(state.expected) +
                " arrivals that the barrier expects in a phase");
  if (state.bytes + std::int64_t{bytes} > most)
    fail_thread("mbarrier.arrive that expects too many bytes");
  races::access(there, sizeof(State), races::Kind::atomic, __builtin_return_address(0));
  races::arrive(there);
  --state.missing;
  state.bytes += std::int64_t{bytes};
  settle(there, state);
}

void mbarrier_wait(const void* barrier, std::uint32_t parity) {
  const std::byte* here = mbarrier_in(cluster_rank(), barrier, "mbarrier.try_wait");
  if (parity > 1)
    fail_thread("mbarrier.try_wait with parity " + std::to_string(parity) + ": it is 0 or 1");
  races::access(here, sizeof(State), races::Kind::atomic_read, __builtin_return_address(0));
  while (load(here).parity == parity)
    wait_for(parity ? "mbarrier.try_wait with parity 1" : "mbarrier.try_wait with parity 0", here,
             describe);
  races::wait(here);
}

}  // namespace simt::detail
