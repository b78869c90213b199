#include "lockstep/simt/watch/watch.h"

#include "lockstep/simt/counters/observer.h"
#include "lockstep/simt/execution/running_blocks.h"
#include "lockstep/simt/races/races.h"

namespace simt::detail::watch {
namespace {

/// Whether this host thread runs the blocks of a launch, in code of the kernel: those who watch
/// share functions of the standard library with kernels' files.
thread_local bool in_kernel = false;

template <class F>
void tell(F tell_all) {
  if (!in_kernel) return;
  in_kernel = false;
  tell_all();
  in_kernel = true;
}

}  // namespace

void begin_launch(const GridRun& run) {
  races::begin_launch(run);
  counters::begin_launch(run);
}

void begin_blocks(uint3 index, std::span<const std::span<std::byte>> shared) {
  races::begin_blocks(index, shared);
  counters::begin_blocks(shared);
  in_kernel = true;
}

std::string end_blocks() {
  in_kernel = false;
  counters::end_blocks();
  return races::end_blocks();
}

void end_launch() { counters::end_launch(); }

void access(const void* data, std::size_t bytes, Kind kind, const void* caller) {
  if (!in_kernel || executor().on_its_stack(data)) return;
  tell([=] {
    races::access(data, bytes, kind, caller);
    counters::access(data, bytes, kind, caller);
  });
}

void copy_begins(void* shared, const void* global, std::size_t bytes, const void* caller) {
  tell([=] {
    if (global) races::access(global, bytes, Kind::read, caller);
    races::access(shared, bytes, Kind::write, caller);
    counters::copy(shared, global, bytes, caller);
  });
}

void box_row(const void* global, std::size_t bytes, const void* caller) {
  tell([=] {
    races::access(global, bytes, Kind::read, caller);
    counters::box_row(global, bytes);
  });
}

void meet(const char* name, int first, int end) {
  races::meet(first, end);
  counters::instruction(name);
}

}  // namespace simt::detail::watch
