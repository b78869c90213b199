/// The counters in a build that does not watch: nothing is counted.

#include <stdexcept>

#include "lockstep/simt/counters/counters.h"
#include "lockstep/simt/counters/observer.h"

namespace simt::detail::counters {

void begin_launch(const GridRun&) {}
void begin_blocks(std::span<const std::span<std::byte>>) {}
void end_blocks() {}
void end_launch() {}
void access(const void*, std::size_t, watch::Kind, const void*) {}
void copy(const void*, const void*, std::size_t, const void*) {}
void matrix_row(const void*, const void*) {}
void box_row(const void*, std::size_t) {}
void box_chunk(const void*, const void*, std::uint32_t) {}
void operands(std::size_t) {}
void instruction(const char*) {}
Pause::Pause() : before_(false) {}
Pause::~Pause() = default;

}  // namespace simt::detail::counters

namespace simt::counters {

bool available() { return false; }
void start() { throw std::logic_error("this build does not watch accesses: it cannot count them"); }
std::vector<Launch> stop() { return {}; }
std::string place_of(const void*) { return {}; }
std::vector<std::string> places_of(const std::vector<const void*>& callers) {
  return std::vector<std::string>(callers.size());
}

}  // namespace simt::counters
