#pragma once
/// The size of a simulated GPU: as large as real ones in what a launch may ask for (the sizes of
/// compute capability 9.0 in the Programming Guide's table "Technical Specifications per Compute
/// Capability"), small in multiprocessors, of which it has no use.

#include <cstddef>

namespace simt::limits {

constexpr int multiprocessors = 4;
constexpr int multiprocessor_threads = 2048;
constexpr int multiprocessor_blocks = 32;
constexpr int registers = 65536;
constexpr int cache_bytes = 4 << 20;

constexpr unsigned block_threads = 1024;    ///< and along x and y
constexpr unsigned cluster_threads = 4096;  ///< a GPU would take 16 blocks of 1024
constexpr unsigned cluster_blocks = 8;
constexpr unsigned cluster_opt_in = 16;  ///< of kernels that say that they need not be portable
constexpr unsigned block_z = 64;
constexpr unsigned grid_x = 0x7fffffff;
constexpr unsigned grid_yz = 65535;

constexpr std::size_t shared_unasked = 48 << 10;  ///< per block, static and dynamic
constexpr std::size_t shared_opt_in = 227 << 10;  ///< per block, after cudaFuncSetAttribute
constexpr std::size_t shared_multiprocessor = 228 << 10;
constexpr std::size_t shared_reserved = 1 << 10;  ///< per block, by the system

constexpr int least_priority = 0, greatest_priority = -5;  ///< of streams

constexpr int cuda_version = 13000;

}  // namespace simt::limits
