#pragma once
/// What a kernel does, told once to all that watch it: races/ and counters/, which do not know each
/// other. What only one of them asks for goes to that one alone.
///
/// In a build that watches (LOCKSTEP_RACES) the compiler puts a call before each access of a .cu
/// file (instrumentation.cpp). The simulator tells of what a kernel does through it: atomics, the
/// copies and the matrix loads of device_intrinsics.h. In other builds nobody watches.
///
/// The simulator's lock guards these functions.

#include <cstddef>
#include <span>
#include <string>

#include "lockstep/simt/execution/executor.h"

namespace simt::detail::watch {

void begin_launch(const GridRun& run);
/// Blocks that run at once: the first has this index; their dynamic shared memory.
void begin_blocks(uint3 index, std::span<const std::span<std::byte>> shared);
/// The running blocks have ended. Returns the first race found in them, in words, or nothing.
std::string end_blocks();
void end_launch();

/// `atomic` reads and writes. Accesses of volatile variables are atomics that order nothing, too
/// (PTX ISA, "Memory Consistency Model").
enum class Kind { read, write, atomic, atomic_read, atomic_write };

// By the running thread, at the place `caller` in the program:

void access(const void* data, std::size_t bytes, Kind kind, const void* caller);
/// cp.async begins. `global` is null if the copy writes zeros.
void copy_begins(void* shared, const void* global, std::size_t bytes, const void* caller);
/// The copy engine reads this much of a row.
void box_row(const void* global, std::size_t bytes, const void* caller);

/// All threads [first, end) have met at the barrier of this name.
void meet(const char* name, int first, int end);

}  // namespace simt::detail::watch
