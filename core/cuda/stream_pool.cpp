#include "lockstep/core/cuda/stream_pool.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/text/number.h"

namespace lockstep::cuda {
namespace {

struct Pooled {
  cudaStream_t stream;
  int device;
  StreamUse use;
  int queue;
  bool taken;
};

/// Never destroyed: threads and static objects give streams back until the process ends.
class StreamPool {
 public:
  /// One in a queue of its own, or, if all queues are in use, any; null if a stream must be made.
  cudaStream_t take(int device, StreamUse use) {
    const std::lock_guard lock(mutex_);
    const bool all_used = std::ssize(queues_in_use(device)) == hardware_queues();
    for (Pooled& one : streams_)
      if (one.device == device && one.use == use && !one.taken &&
          (all_used || !queues_in_use(device).contains(one.queue))) {
        one.taken = true;
        return one.stream;
      }
    return nullptr;
  }

  void add(cudaStream_t stream, int device, StreamUse use) {
    const std::lock_guard lock(mutex_);
    streams_.push_back({stream, device, use, made_[device]++ % hardware_queues(), false});
  }

  cudaError_t keep(cudaStream_t stream, bool idle) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(streams_, stream, &Pooled::stream);
    if (idle) {
      found->taken = false;
      return cudaSuccess;
    }
    streams_.erase(found);
    return cudaStreamDestroy(stream);
  }

  int in_use(int device) {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::ranges::count_if(
        streams_, [&](const Pooled& one) { return one.taken && one.device == device; }));
  }

  std::mutex making;  ///< streams are numbered as the driver makes them

 private:
  std::set<int> queues_in_use(int device) const {
    std::set<int> queues;
    for (const Pooled& one : streams_)
      if (one.taken && one.device == device) queues.insert(one.queue);
    return queues;
  }

  std::mutex mutex_;
  std::vector<Pooled> streams_;
  std::map<int, int> made_;  // by device
};

StreamPool& stream_pool() {
  static auto* const all = new StreamPool;
  return *all;
}

cudaStream_t make_stream(const char* operation, StreamUse use) {
  cudaStream_t stream{};
  int least = 0, greatest = 0;
  call(operation, "cudaDeviceGetStreamPriorityRange",
       cudaDeviceGetStreamPriorityRange(&least, &greatest));
  call(operation, "cudaStreamCreateWithPriority",
       cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                    use == StreamUse::communicating ? greatest : least));
  return stream;
}

}  // namespace

StreamHandle take_stream(const char* operation, StreamUse use) {
  StreamPool& pool = stream_pool();
  int device = 0;
  call(operation, "cudaGetDevice", cudaGetDevice(&device));
  if (cudaStream_t kept = pool.take(device, use)) return StreamHandle(kept);
  const std::lock_guard lock(pool.making);  // the driver may take its time: others still give back
  for (;;) {                                // each one is of the next queue
    if (cudaStream_t kept = pool.take(device, use)) return StreamHandle(kept);
    pool.add(make_stream(operation, use), device, use);
  }
}

cudaError_t keep_stream(cudaStream_t stream) {
  const bool idle = query(stream) == cudaSuccess;
  return stream_pool().keep(stream, idle);
}

int streams_in_use(int device) { return stream_pool().in_use(device); }

int hardware_queues() {
  const char* const text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const int number = text ? parse_number<int>(text).value_or(0) : 0;
  return number >= 1 && number <= 32 ? number : 8;
}

}  // namespace lockstep::cuda
