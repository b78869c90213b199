#pragma once
/// The GPUs for which times are predicted. gpu.cpp has the table, and where its figures come from.

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::predict {

/// Per cycle, unless it says otherwise, of one multiprocessor.
struct Gpu {
  std::string_view name;
  int processors;
  double base_clock, boost_clock;  ///< cycles per second
  int fma_lanes;                   ///< f32 multiply-adds
  int load_store_units;            ///< threads whose accesses are taken; a warp has 32
  double mma;                      ///< multiply-adds of 16-bit factors by `mma.sync`
  double wgmma;                    ///< the same by `wgmma`; 0: has none
  int threads, blocks;             ///< that fit
  std::int64_t registers, shared_bytes;
  std::int64_t l2_size;                ///< of the whole GPU, bytes
  double l2_bytes;                     ///< read from L2 by all of them together
  double memory_bytes;                 ///< of the whole GPU, per second
  int shared_latency, memory_latency;  ///< cycles
  bool clusters = false;               ///< blocks of a cluster read each other's shared memory
};

/// All of them have four schedulers with an instruction per cycle each, 128 bytes of L1 and shared
/// memory per cycle, and 64 bytes from and 32 bytes to L2.
inline constexpr int schedulers = 4;
inline constexpr double from_l2_bytes = 64, to_l2_bytes = 32;

std::span<const Gpu> gpus();

/// "H100". Throws UsageError for a name that is not in the table.
const Gpu& gpu_named(std::string_view name);

}  // namespace lockstep::predict
