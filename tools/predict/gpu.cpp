// The table of GPUs. Sources; where a figure has another one, a comment beside it says so:
//
//   processors, lanes, sizes of L2
//       NVIDIA, white papers: "Ampere GA102 GPU Architecture" (RTX A6000), "A100 Tensor Core GPU
//       Architecture", "Ada GPU Architecture" (RTX 4090), "H100 Tensor Core GPU Architecture".
//   clocks
//       TechPowerUp's GPU database: RTX A6000, A100 SXM4 80 GB, GeForce RTX 4090, H100 SXM5 80 GB,
//       H200 SXM 141 GB. Its boost clocks are NVIDIA's, which gives base clocks for few.
//   load/store units
//       The white papers' pictures of a multiprocessor: 4 in each quarter of GA102 and AD102, 8 of
//       GA100 and GH100. Not found in their text.
//   mma, wgmma
//       The data sheets' dense TFLOP/s of 16-bit factors with sums of 32 bits, by processors, boost
//       clock and 2: 154.8 (A6000), 312 (A100), 165.2 (RTX 4090). An H100's 989.4 are for a clock
//       of 1.83 GHz. `Luo` (below) measured 128 cycles for a wgmma of 64 x 256 x 16: 2048 a cycle.
//   threads, blocks, registers, shared memory
//       CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": 8.6, 8.0,
//       8.9, 9.0; the same in cuda_occupancy.h of the toolkit.
//   latencies, and mma on Hopper
//       Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", 2024
//       (arXiv 2402.13499), tables IV and VII: RTX 4090, A100 PCIe, H800 PCIe. An H100's are taken
//       for those of the H800, which has the same chip.
//   clusters
//       White paper of the H100. What they do per cycle: H100 in kernels/cuda/gemm/slice_plan.h.
//   bytes of L2
//       What the white paper of the A100 says of it, or what `Luo`, table V, measured. The two
//       differ: of an A100's 5120 the measurement finds 2008. AD102's slices:
//       github.com/smallscientist1/cuda_microbenchmark, analysis_RTX4090.md.
//   bytes of memory
//       Data sheets; an H100's 3.35 TB/s are 5120 bits at 2619 MHz, twice.
//
// What all of them have (gpu.h): the white papers say four schedulers and 128 bytes of L1, of which
// `Luo` measured 107 to 124. Not found: the bytes between a multiprocessor and L2.
#include "lockstep/tools/predict/gpu.h"

#include <fmt/ranges.h>

#include <vector>

#include "lockstep/core/error.h"

namespace lockstep::predict {
namespace {

constexpr double GHz = 1e9, GB = 1e9;
constexpr double mma_of_peak = 0.629;  // `Luo`: of Hopper's peak, the mean of all types of factors
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
     .l2_bytes = 1536,  // not found: assumed from the 48 slices of 32 bytes of AD102
     .memory_bytes = 768 * GB,
     .shared_latency = 29,  // not found: both assumed from the A100, of the same generation
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
     .l2_bytes = 5120,  // white paper, "A100 L2 Cache"
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
     .l2_bytes = 1708,  // `Luo`, by loads of 16 bytes
     .memory_bytes = 1008 * GB,
     .shared_latency = 30,
     .memory_latency = 542},
    {.name = "H100",
     .processors = 132,
     .base_clock = 1.59 * GHz,
     .boost_clock = 1.98 * GHz,
     .fma_lanes = 128,
     .load_store_units = 32,
     .mma = 2048 * mma_of_peak,
     .wgmma = 2048,
     .threads = 2048,
     .blocks = 32,
     .registers = 65536,
     .shared_bytes = 228 * KiB,
     .l2_size = 50 * MiB,
     .l2_bytes = 5120,  // not found: assumed from the A100. `Luo`: 4472, 3942 by loads of 16 bytes
     .memory_bytes = 3352 * GB,
     .shared_latency = 29,
     .memory_latency = 479,
     .clusters = true},
    {.name = "H200",
     .processors = 132,
     .base_clock = 1.50 * GHz,
     .boost_clock = 1.98 * GHz,
     .fma_lanes = 128,
     .load_store_units = 32,
     .mma = 2048 * mma_of_peak,
     .wgmma = 2048,
     .threads = 2048,
     .blocks = 32,
     .registers = 65536,
     .shared_bytes = 228 * KiB,
     .l2_size = 50 * MiB,
     .l2_bytes = 5120,  // as the H100, whose chip it has; so its latencies
     .memory_bytes = 4800 * GB,
     .shared_latency = 29,
     .memory_latency = 479,
     .clusters = true},
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
