#pragma once
/// Where threads meet: the block's barriers, and the instructions of a warp, on one rendezvous.
///
/// As on a GPU a rendezvous of a warp waits for all threads of its mask that have not ended, each
/// at the same instruction with the same mask. Threads that have ended take no part; a value that
/// is read from one is a NaN pattern (CUDA leaves it undefined). The block's barriers wait for
/// every thread of the block: one that has ended without them is an error (the Programming Guide
/// leaves it undefined; many chips let it pass).

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace simt {

namespace detail {

using AnyFunction = void (*)();

/// Computes all present threads' results; `all` is the function of one thread's result, untyped.
using Complete = void (*)(AnyFunction all, const void* const* inputs, void* const* results,
                          unsigned present);

/// Waits for the threads of `mask`; the last to come runs `complete` for all of them. `name`, with
/// static lifetime, is for reports. Instructions differ if `name`, `mask` or `all` do.
void warp_rendezvous(const char* name, unsigned mask, const void* mine, void* result,
                     AnyFunction all, Complete complete);

struct BarrierCounts {
  int threads;  ///< in the block
  int set;      ///< those whose predicate was not zero
};
BarrierCounts block_barrier(const char* name, bool predicate);

unsigned linear_thread();        ///< index of the running thread in its block, or cluster of blocks
std::uint64_t clusters_begun();  ///< (or blocks without one) in this process, with the running one

/// Ends the kernel: the running thread has done what no thread may do.
[[noreturn]] void fail_thread(const std::string& what);

/// The compiler must not move memory accesses across a point where other threads run.
__attribute__((always_inline)) inline void compiler_fence() { asm volatile("" ::: "memory"); }

template <class In, class Out>
void complete(AnyFunction all, const void* const* inputs, void* const* results, unsigned present) {
  std::array<In, 32> lanes;
  std::memset(static_cast<void*>(lanes.data()), 0xff, sizeof lanes);
  for (int lane = 0; lane < 32; ++lane)
    if (present >> lane & 1u)
      std::memcpy(static_cast<void*>(&lanes[lane]), inputs[lane], sizeof(In));
  const auto one = reinterpret_cast<Out (*)(const std::array<In, 32>&, int)>(all);
  for (int lane = 0; lane < 32; ++lane)
    if (present >> lane & 1u) *static_cast<Out*>(results[lane]) = one(lanes, lane);
}

}  // namespace detail

/// An instruction that a whole warp executes together: waits until every thread of `mask` has come
/// with its input, then gives each thread all(the inputs of all, its number in the warp). Inputs of
/// threads that are absent consist of bytes 0xff (NaN as any floating type). `name` stands in
/// reports and has static lifetime; In and Out are trivially copyable; `all` depends on nothing
/// else.
template <class In, class Out>
Out warp_collective(const char* name, unsigned mask, const In& mine,
                    Out (*all)(const std::array<In, 32>& lanes, int lane)) {
  static_assert(std::is_trivially_copyable_v<In> && std::is_trivially_copyable_v<Out>);
  Out result;
  detail::compiler_fence();
  detail::warp_rendezvous(name, mask, &mine, &result, reinterpret_cast<detail::AnyFunction>(all),
                          detail::complete<In, Out>);
  detail::compiler_fence();
  return result;
}

/// The running thread's number in its warp.
inline int lane() { return static_cast<int>(detail::linear_thread() % 32); }

namespace detail {

/// What a thread brings to a shuffle: its value, and the number of the thread whose value it takes.
template <class T>
struct Shuffled {
  T value;
  int source;
};

template <class T>
T shuffle(const char* name, unsigned mask, T value, int source) {
  return warp_collective<Shuffled<T>, T>(
      name, mask, {value, source}, [](const std::array<Shuffled<T>, 32>& lanes, int lane) -> T {
        return lanes[lanes[lane].source].value;
      });
}

/// What a thread brings to a vote. `present` is 1, or -1 for a thread that is absent (bytes 0xff).
struct Vote {
  int predicate;
  int present;
};

inline unsigned vote(const char* name, unsigned mask, int predicate,
                     unsigned (*all)(const std::array<Vote, 32>&, int)) {
  return warp_collective<Vote, unsigned>(name, mask, {predicate, 1}, all);
}

inline unsigned ballot_of(const std::array<Vote, 32>& lanes, int) {
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (lanes[lane].present == 1 && lanes[lane].predicate != 0) ballot |= 1u << lane;
  return ballot;
}

inline unsigned any_of(const std::array<Vote, 32>& lanes, int lane) {
  return ballot_of(lanes, lane) != 0;
}

inline unsigned all_of(const std::array<Vote, 32>& lanes, int) {
  for (const Vote& vote : lanes)
    if (vote.present == 1 && vote.predicate == 0) return 0;
  return 1;
}

/// First thread of the group of `width` threads in which this thread shuffles.
inline int first_of_group(const char* name, int width) {
  if (width < 1 || width > 32 || (width & (width - 1)) != 0)
    fail_thread(std::string(name) + " with width " + std::to_string(width) +
                ", which is not a power of two up to 32");
  return lane() & ~(width - 1);
}

}  // namespace detail
}  // namespace simt

// ---- the block's barriers -----------------------------------------------------------------------

// Always inlined: what calls block_barrier() is the kernel, and two places are two barriers.
#define SIMT_INLINE __attribute__((always_inline)) inline

SIMT_INLINE void __syncthreads() {
  simt::detail::compiler_fence();
  simt::detail::block_barrier("__syncthreads", false);
  simt::detail::compiler_fence();
}

SIMT_INLINE int __syncthreads_count(int predicate) {
  simt::detail::compiler_fence();
  const int set = simt::detail::block_barrier("__syncthreads_count", predicate != 0).set;
  simt::detail::compiler_fence();
  return set;
}

SIMT_INLINE int __syncthreads_and(int predicate) {
  simt::detail::compiler_fence();
  const auto counts = simt::detail::block_barrier("__syncthreads_and", predicate != 0);
  simt::detail::compiler_fence();
  return counts.set == counts.threads;
}

SIMT_INLINE int __syncthreads_or(int predicate) {
  simt::detail::compiler_fence();
  const int set = simt::detail::block_barrier("__syncthreads_or", predicate != 0).set;
  simt::detail::compiler_fence();
  return set != 0;
}

#undef SIMT_INLINE

// ---- a warp's instructions ----------------------------------------------------------------------

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  simt::warp_collective<char, char>("__syncwarp", mask, 0,
                                    [](const std::array<char, 32>&, int) -> char { return 0; });
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return simt::detail::vote("__ballot_sync", mask, predicate, simt::detail::ballot_of);
}
inline int __any_sync(unsigned mask, int predicate) {
  return static_cast<int>(simt::detail::vote("__any_sync", mask, predicate, simt::detail::any_of));
}
inline int __all_sync(unsigned mask, int predicate) {
  return static_cast<int>(simt::detail::vote("__all_sync", mask, predicate, simt::detail::all_of));
}

/// Threads run one at a time here, and CUDA does not promise more company: this thread alone.
inline unsigned __activemask() { return 1u << simt::lane(); }

// The source threads: PTX ISA, "shfl.sync". A source outside of the group is the thread itself.

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = simt::detail::first_of_group("__shfl_sync", width);
  return simt::detail::shuffle("__shfl_sync", mask, value, first + (source & (width - 1)));
}

template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int first = simt::detail::first_of_group("__shfl_up_sync", width);
  const int lane = simt::lane(), source = lane - static_cast<int>(delta & 31);
  return simt::detail::shuffle("__shfl_up_sync", mask, value, source < first ? lane : source);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int end = simt::detail::first_of_group("__shfl_down_sync", width) + width;
  const int lane = simt::lane(), source = lane + static_cast<int>(delta & 31);
  return simt::detail::shuffle("__shfl_down_sync", mask, value, source >= end ? lane : source);
}

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const int end = simt::detail::first_of_group("__shfl_xor_sync", width) + width;
  const int lane = simt::lane(), source = lane ^ (lane_mask & 31);
  return simt::detail::shuffle("__shfl_xor_sync", mask, value, source >= end ? lane : source);
}
