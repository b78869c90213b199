/// races.h in a build that does not watch: nothing is done.

#include "lockstep/simt/races/races.h"

namespace simt::detail::races {

bool watched() { return false; }
void watch(bool) {}
void memory_ends(const void*, std::size_t) {}
void undefined(const void*, std::size_t) {}
void defined(const void*, std::size_t) {}
void begin_launch(const GridRun&) {}
void begin_blocks(uint3, std::span<const std::span<std::byte>>) {}
std::string end_blocks() { return {}; }
void meet(int, int) {}
void meet_in_warp(int, unsigned) {}
void arrive(const void*) {}
void complete(const void*) {}
void wait(const void*) {}
void same_barrier(const void*, const void*) {}
std::string line_of(const void*) { return {}; }
void access(const void*, std::size_t, Kind, const void*) {}
void misaligned(std::uintptr_t, std::size_t, const std::function<std::string()>&) {}
Clocks::Copy copy_begins(const void*, std::size_t, const void*, const void*) { return {}; }
void copy_arrives(const void*, const Clocks::Copy&) {}

}  // namespace simt::detail::races
