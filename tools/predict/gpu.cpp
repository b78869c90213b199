// The table of GPUs. Sources:
//
//   processors, clocks, lanes, units, tensor cores, sizes, bytes of memory
//       NVIDIA, white papers: "Ampere GA102 GPU Architecture" (RTX A6000), "A100 Tensor Core GPU
//       Architecture", "Ada GPU Architecture" (RTX 4090), "H100 Tensor Core GPU Architecture"; data
//       sheet of the H200. Base clocks, where these have none: TechPowerUp's GPU database.
//       GA102 and AD102 have 16 load/store units in a multiprocessor, GA100 and GH100 have 32.
//   threads, blocks, registers, shared memory
//       CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"
//   mma on Hopper: 62 % of wgmma; latencies
//       Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
//       Microbenchmarking", 2024 (RTX 4090, A100, H100). For the A6000 those of the A100, which is
//       of the same generation.
//   bytes of L2
//       A100: its white paper; H100 and H200: the same, for NVIDIA gives no other figure. GA102 and
//       AD102: 64 for each 32 bits of the memory's bus, twice: a guess, which no kernel here is
//       bound by.
#include "lockstep/tools/predict/gpu.h"

#include <fmt/ranges.h>

#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::predict {
namespace {

constexpr double GHz = 1e9, GB = 1e9, mma_of_wgmma = 0.62;
constexpr std::int64_t KiB = 1024, MiB = 1024 * KiB;

constexpr Gpu table[] = {
    {.name = "A6000",
     .processors = 84,
     .base_clock = 1.41 * GHz,
     .boost_clock = 1.80 * GHz,
     .fma_lanes = 128,
     .load_store_units = 16,
     .mma = 512,
     .wgmma = 0,
     .threads = 1536,
     .blocks = 16,
     .registers = 65536,
     .shared_bytes = 100 * KiB,
     .l2_size = 6 * MiB,
     .l2_bytes = 1536,
     .memory_bytes = 768 * GB,
     .shared_latency = 29,
     .memory_latency = 466},
    {.name = "A100",
     .processors = 108,
     .base_clock = 1.275 * GHz,
     .boost_clock = 1.41 * GHz,
     .fma_lanes = 64,
     .load_store_units = 32,
     .mma = 1024,
     .wgmma = 0,
     .threads = 2048,
     .blocks = 32,
     .registers = 65536,
     .shared_bytes = 164 * KiB,
     .l2_size = 40 * MiB,
     .l2_bytes = 5120,
     .memory_bytes = 2039 * GB,
     .shared_latency = 29,
     .memory_latency = 466},
    {.name = "RTX 4090",
     .processors = 128,
     .base_clock = 2.235 * GHz,
     .boost_clock = 2.52 * GHz,
     .fma_lanes = 128,
     .load_store_units = 16,
     .mma = 256,
     .wgmma = 0,
     .threads = 1536,
     .blocks = 24,
     .registers = 65536,
     .shared_bytes = 100 * KiB,
     .l2_size = 72 * MiB,
     .l2_bytes = 1536,
     .memory_bytes = 1008 * GB,
     .shared_latency = 30,
     .memory_latency = 542},
    {.name = "H100",
     .processors = 132,
     .base_clock = 1.59 * GHz,
     .boost_clock = 1.98 * GHz,
     .fma_lanes = 128,
     .load_store_units = 32,
     .mma = 2048 * mma_of_wgmma,
     .wgmma = 2048,
     .threads = 2048,
     .blocks = 32,
     .registers = 65536,
     .shared_bytes = 228 * KiB,
     .l2_size = 50 * MiB,
     .l2_bytes = 5120,
     .memory_bytes = 3352 * GB,
     .shared_latency = 29,
     .memory_latency = 479},
    {.name = "H200",
     .processors = 132,
     .base_clock = 1.59 * GHz,
     .boost_clock = 1.98 * GHz,
     .fma_lanes = 128,
     .load_store_units = 32,
     .mma = 2048 * mma_of_wgmma,
     .wgmma = 2048,
     .threads = 2048,
     .blocks = 32,
     .registers = 65536,
     .shared_bytes = 228 * KiB,
     .l2_size = 50 * MiB,
     .l2_bytes = 5120,
     .memory_bytes = 4800 * GB,
     .shared_latency = 29,
     .memory_latency = 479},
};

}  // namespace

std::span<const Gpu> gpus() { return table; }

const Gpu& gpu_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Gpu& gpu : table) {
    if (gpu.name == name) return gpu;
    names.push_back(gpu.name);
  }
  throw UsageError(
      fmt::format("predict: no GPU is named '{}' (there are: {})", name, fmt::join(names, ", ")));
}

}  // namespace lockstep::predict
