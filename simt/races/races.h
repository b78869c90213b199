#pragma once
/// Races between the threads of a kernel, and reads of memory that nobody has written: what
/// compute-sanitizer's racecheck and initcheck look for.
///
/// In a build that watches (LOCKSTEP_RACES) the compiler puts a call before each access of a .cu
/// file (watch/). Each thread has a clock, which advances at a barrier, at __syncwarp
/// and at an arrival at an mbarrier, and a list: for each other thread, the time up to which that
/// one's accesses are ordered before its own. It *knows* of these. Of each word of shared or global
/// memory the latest accesses are kept, with thread and time (shadow.h). Two accesses of which one
/// writes are a race if the later thread does not know of the earlier access, in whatever order the
/// threads happen to run (vector clocks: Mattern 1989; the last accesses alone: Flanagan and
/// Freund, "FastTrack", 2009).
///
///     thread 0:  tile[0] = x   at 1 |             | time 2
///     thread 1:                     | __syncthreads: all know all others up to time 1
///     thread 1:  y = tile[0]        | thread 0 at 1 is known: no race
///
/// Blocks of a launch do not know of each other, except those of one cluster. Atomics race with
/// other accesses only. Launches in several streams are not compared with each other.
///
/// In other builds these functions do nothing (absent.cpp). The simulator's lock guards them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "lockstep/simt/execution/executor.h"
#include "lockstep/simt/races/clocks.h"
#include "lockstep/simt/watch/watch.h"

namespace simt::detail::races {

/// Whether this build watches.
bool watched();
void watch(bool on);  ///< from the next launch on; at first it does

// ---- memory ------------------------------------------------------------------------------------

/// Global memory, device memory or of the host and known to devices, is no more.
void memory_ends(const void* data, std::size_t bytes);
/// It is new: allocated, and nobody has written it; something other than a kernel has written it.
void undefined(const void* data, std::size_t bytes);
void defined(const void* data, std::size_t bytes);

// ---- a launch ----------------------------------------------------------------------------------

void begin_launch(const GridRun& run);
/// Blocks that run at once: the first has this index; their dynamic shared memory.
void begin_blocks(uint3 index, std::span<const std::span<std::byte>> shared);
/// The running blocks have ended. Returns the first thing found in them, in words, or nothing.
std::string end_blocks();

// ---- where threads meet ------------------------------------------------------------------------

/// All threads [first, end) have met, and know of each other's past.
void meet(int first, int end);
/// Those of a warp whose bits are set.
void meet_in_warp(int warp, unsigned threads);
/// The running thread arrives at a barrier in memory; its phase completes; the running thread has
/// waited for that.
void arrive(const void* barrier);
void complete(const void* barrier);
void wait(const void* barrier);

/// The running thread comes to the block's barrier at `caller`, others wait at `other`: a report if
/// these are two lines of the sources. (The compiler may make several places of one.)
void same_barrier(const void* caller, const void* other);
/// "\n  at FILE:LINE" of a call in a kernel, for reports; empty in a build that does not watch.
std::string line_of(const void* caller);

// ---- accesses ----------------------------------------------------------------------------------

using watch::Kind;

/// By the running thread, at the place `caller` in the program. Anything but shared and global
/// memory is passed over.
void access(const void* data, std::size_t bytes, Kind kind, const void* caller);

/// The running thread uses an address that is not a multiple of its type's alignment. This ends the
/// launch at once: on this processor some such accesses would else end the program (SIGSEGV).
/// `line` tells where; it takes its time.
void misaligned(std::uintptr_t address, std::size_t alignment,
                const std::function<std::string()>& line);

/// The copy engine begins to write for the running thread.
Clocks::Copy copy_begins(const void* to, std::size_t bytes, const void* barrier,
                         const void* caller);
/// It has written, and says so at the barrier in memory.
void copy_arrives(const void* barrier, const Clocks::Copy& copy);

}  // namespace simt::detail::races
