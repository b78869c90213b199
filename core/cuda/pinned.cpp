#include "lockstep/core/cuda/pinned.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/handle.h"

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
  std::vector<std::pair<Handle<cudaEvent_t, cudaEventDestroy>, void*>> in_use;  ///< until then

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

void keep_pinned_after(const char* operation, void* data, cudaStream_t stream) {
  cudaEvent_t made{};
  call(operation, "cudaEventCreateWithFlags",
       cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  Handle<cudaEvent_t, cudaEventDestroy> end(made);
  call(operation, "cudaEventRecord", cudaEventRecord(made, stream));
  const std::lock_guard lock(pool().mutex);
  pool().in_use.emplace_back(std::move(end), data);
  std::erase_if(pool().in_use, [](const auto& one) {
    if (query(one.first.get()) == cudaErrorNotReady) return false;
    std::ranges::find(pool().blocks, one.second, &Block::data)->taken = false;
    return true;
  });
}

bool is_pinned(const void* data) {
  const std::lock_guard lock(pool().mutex);
  return std::ranges::find(pool().blocks, data, &Block::data) != pool().blocks.end();
}

cudaError_t keep_pinned(void* data) {
  const std::lock_guard lock(pool().mutex);
  std::ranges::find(pool().blocks, data, &Block::data)->taken = false;
  return cudaSuccess;
}

}  // namespace lockstep::cuda
