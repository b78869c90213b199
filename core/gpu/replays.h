#pragma once
/// Replays of recorded steps (graph.h) that are under way on a stream.
///
/// The host goes on ahead of them, but at most `most_ahead` steps. So what it waits for is never
/// further away than that: a rank that does not come is named after a timeout of its own, not of
/// hundreds of steps; and what a rank must still run after it has given up is little.

#include <cstddef>
#include <cstdint>

#include "lockstep/core/gpu/stream.h"

namespace lockstep::gpu {

/// Enough that no GPU waits for its host: to launch a recorded step takes microseconds.
inline constexpr std::size_t most_ahead = 4;

struct Replays {
  std::uint64_t under_way = 0;
  std::uint64_t ended = 0;  ///< since the stream was made
};

/// Asks the GPU. Not while the calling thread records a step (StepGraph::Pause). Thread-safe.
Replays replays_on(const Stream& stream);

}  // namespace lockstep::gpu
