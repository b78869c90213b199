#include "lockstep/core/cuda/stream_pool.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "lockstep/core/cuda/check.h"

namespace lockstep::cuda {
namespace {

struct Pooled {
  cudaStream_t stream;
  int device;
  StreamUse use;
  bool taken;
};

/// Never destroyed: threads and static objects give streams back until the process ends.
struct StreamPool {
  std::mutex mutex;
  std::vector<Pooled> streams;
};

StreamPool& stream_pool() {
  static auto* const all = new StreamPool;
  return *all;
}

}  // namespace

StreamHandle take_stream(const char* operation, StreamUse use) {
  int device = 0;
  call(operation, "cudaGetDevice", cudaGetDevice(&device));
  {
    const std::lock_guard lock(stream_pool().mutex);
    for (Pooled& pooled : stream_pool().streams)
      if (pooled.device == device && pooled.use == use && !pooled.taken) {
        pooled.taken = true;
        return StreamHandle(pooled.stream);
      }
  }
  cudaStream_t stream{};  // made without the lock: the driver may take its time
  int least = 0, greatest = 0;
  call(operation, "cudaDeviceGetStreamPriorityRange",
       cudaDeviceGetStreamPriorityRange(&least, &greatest));
  call(operation, "cudaStreamCreateWithPriority",
       cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                    use == StreamUse::communicating ? greatest : least));
  const std::lock_guard lock(stream_pool().mutex);
  stream_pool().streams.push_back({stream, device, use, true});
  return StreamHandle(stream);
}

cudaError_t keep_stream(cudaStream_t stream) {
  const bool idle = cudaStreamQuery(stream) == cudaSuccess;
  const std::lock_guard lock(stream_pool().mutex);
  const auto found = std::ranges::find(stream_pool().streams, stream, &Pooled::stream);
  if (idle) {
    found->taken = false;
    return cudaSuccess;
  }
  stream_pool().streams.erase(found);
  return cudaStreamDestroy(stream);
}

}  // namespace lockstep::cuda
