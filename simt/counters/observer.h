#pragma once
/// What the counters are told of running kernels (watch/watch.h). In builds that do not watch,
/// these functions do nothing (absent.cpp).

#include <cstddef>
#include <cstdint>
#include <span>

#include "lockstep/simt/execution/executor.h"
#include "lockstep/simt/watch/watch.h"

namespace simt::detail::counters {

void begin_launch(const GridRun& run);
void begin_blocks(std::span<const std::span<std::byte>> shared);
void end_blocks();
void end_launch();

// By the running thread, at the place `caller` in the program. Anything but shared and global
// memory is passed over.

void access(const void* data, std::size_t bytes, watch::Kind kind, const void* caller);
/// cp.async. `global` may be null.
void copy(const void* shared, const void* global, std::size_t bytes, const void* caller);
/// A row of ldmatrix.
void matrix_row(const void* row, const void* caller);
void box_row(const void* global, std::size_t bytes);
/// 16 bytes of a box of a matrix, and at which byte of the box in shared memory they arrive.
void box_chunk(const void* matrix, const void* global, std::uint32_t place);
/// A warp's part of a wgmma has read this much of shared memory. Counted in a Pause, too: there the
/// simulator reads it for the warp.
void operands(std::size_t bytes);

/// A block has met at a barrier, or a warp has executed an instruction together. `name` has static
/// lifetime.
void instruction(const char* name);

/// While it lives the simulator does something in the kernel's place, which is not counted.
class Pause {
 public:
  Pause();
  ~Pause();
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  bool before_;
};

}  // namespace simt::detail::counters
