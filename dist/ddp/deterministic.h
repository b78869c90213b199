#pragma once
/// Levels of determinism, and what stands in the way of one: second reading.

#include <array>
#include <cstdint>
#include <string_view>

#include "lockstep/dist/ddp/buckets/gradient_buckets.h"

namespace lockstep::dist {

/// For what, beside the same command again, the bits of a training are to be the same. Each level
/// has what the ones above it promise.
///
///   level    the same bits for                        what gives them
///   run      the same command again                   everything
///   layout   any buckets, transport, thread count     sums in a tree over the ranks (`direct`)
///   world    any number of ranks                      lanes (core/lanes.h)
///   machine  any processor with FMA, AVX2 or AVX-512  f32 on the CPU, chain products
///
/// A program that asks for a level in DdpOptions gets it, or an error that names what stands in its
/// way.
///
/// Of level machine: it takes the same compiler and libraries (Eigen's functions, the C library's
/// logarithms), and so the same bits were seen from builds for x86-64-v3 and x86-64-v4.
enum class Deterministic : std::uint8_t { run, layout, world, machine };

inline constexpr std::array<std::string_view, 4> deterministic_names{"run", "layout", "world",
                                                                     "machine"};
inline std::string_view name_of(Deterministic level) {
  return deterministic_names[static_cast<std::size_t>(level)];
}

/// Before a backward with this contribution: throws StateError for what keeps it from the level
/// that was `asked` for. A batch with lanes asks for `world`. From level `layout` on, the
/// communicator adds in tree order from now on.
void check_level(Deterministic asked, const Contribution& contribution,
                 const GradientBuckets& buckets, const CommunicationHook* hook,
                 Communicator& communicator);
/// Throws StateError for steps on local gradients: no level of more than one world has them.
void check_level_of_local_steps(Deterministic asked);

}  // namespace lockstep::dist
