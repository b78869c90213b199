#pragma once
/// For what, beside the same command again, the bits of a training are to be the same. Each level
/// has what the ones above it promise.
///
///   level    the same bits for                        what gives them
///   run      the same command again                   everything
///   layout   any buckets, transport, thread count     sums in a tree over the ranks (`direct`)
///   world    any number of ranks                      lanes (core/lanes.h)
///   machine  any processor with FMA, AVX2 or AVX-512  f32 on the CPU, chain products
///
/// Whoever asks for a level in DdpOptions gets it, or an error that names what stands in its way.
///
/// Of level machine: it takes the same compiler and libraries (Eigen's functions, the C library's
/// logarithms), and so the same bits were seen from builds for x86-64-v3 and x86-64-v4.

#include <array>
#include <cstdint>
#include <string_view>

namespace lockstep::dist {

enum class Deterministic : std::uint8_t { run, layout, world, machine };

inline constexpr std::array<std::string_view, 4> deterministic_names{"run", "layout", "world",
                                                                     "machine"};
inline std::string_view name_of(Deterministic level) {
  return deterministic_names[static_cast<std::size_t>(level)];
}

}  // namespace lockstep::dist
