#include "lockstep/core/cuda/pinned.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "lockstep/core/cuda/check.h"

namespace lockstep::cuda {
namespace {

struct Block {
  void* data;
  std::size_t bytes;
  bool taken;
};

/// Never destroyed: threads and static objects give blocks back until the process ends.
struct Pool {
  std::mutex mutex;
  std::vector<Block> blocks;

  /// The smallest that has enough bytes, but not four times as many.
  Block* best(std::size_t bytes) {
    Block* found = nullptr;
    for (Block& block : blocks)
      if (!block.taken && block.bytes >= bytes && block.bytes / 4 < bytes &&
          (!found || block.bytes < found->bytes))
        found = &block;
    return found;
  }
};

Pool& pool() {
  static auto* const all = new Pool;
  return *all;
}

}  // namespace

void* take_pinned(const char* operation, std::size_t bytes) {
  {
    const std::lock_guard lock(pool().mutex);
    if (Block* const block = pool().best(bytes)) {
      block->taken = true;
      return block->data;
    }
  }
  void* data = nullptr;  // made without the lock: the driver may take its time
  call(operation, "cudaMallocHost", cudaMallocHost(&data, bytes));
  const std::lock_guard lock(pool().mutex);
  pool().blocks.push_back({data, bytes, true});
  return data;
}

cudaError_t keep_pinned(void* data) {
  const std::lock_guard lock(pool().mutex);
  std::ranges::find(pool().blocks, data, &Block::data)->taken = false;
  return cudaSuccess;
}

}  // namespace lockstep::cuda
