#pragma once
/// What a block knows of its cluster (of itself alone, if it was launched without one), and two
/// means for what Hopper GPUs do: threads that wait for something in memory, and work that hardware
/// does by itself.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace simt::detail {

unsigned cluster_rank();  ///< of the running thread's block
unsigned cluster_size();
void cluster_barrier();  ///< waits for all threads of all blocks of the cluster
bool block_has_ended(unsigned rank);

/// Dynamic shared memory of a block of the cluster.
struct SharedMemory {
  std::byte* data;
  std::size_t bytes;
};
SharedMemory shared_memory_of(unsigned rank);

/// In words, for reports.
using Describe = std::string (*)(const void* what);

/// Waits until `wake(what)`. `name` has static lifetime; `describe` is asked if no wake() ever
/// comes.
void wait_for(const char* name, const void* what, Describe describe);
void wake(const void* what);

/// Work that happens later: once no thread of the cluster can run. It returns what went wrong, in
/// words, or nothing, and throws nothing.
void defer(std::function<std::string()> work);

/// Shared memory begins at this address, as instructions count them. It could be any multiple of
/// 128 (some of it may be the system's); this one is no multiple of 256, so that no code relies on
/// more.
constexpr std::uint32_t shared_base = 0x480;

/// Of a place in the running block's dynamic shared memory, or of its end; fails the thread if it
/// is elsewhere.
std::uint32_t shared_address(const void* shared);

/// Where `address` of block `rank` is; null if [address, address + bytes) is not inside.
inline std::byte* shared_at(unsigned rank, std::uint32_t address, std::size_t bytes) {
  const SharedMemory memory = shared_memory_of(rank);
  const std::size_t offset = std::size_t{address} - shared_base;
  return address < shared_base || offset + bytes > memory.bytes ? nullptr : memory.data + offset;
}

/// ld.shared::cluster: where `bytes` aligned bytes are that lie in block `rank` at the place of
/// `shared` in this one; fails the thread if there are none.
const void* shared_in_block(const void* shared, std::size_t bytes, unsigned rank);

}  // namespace simt::detail
