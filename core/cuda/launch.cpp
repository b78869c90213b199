// What is remembered of launches, and how errors are told.
#include "lockstep/core/cuda/launch.h"

#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/core/cuda/state.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/gpu/host_wait.h"

namespace lockstep::cuda {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string_view, KernelRecord> kernels;  // nodes stay where they are
};

// Never destroyed: kernels may still be launched while the program ends.
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

// The last kernels that this thread launched since it last waited.
struct Recent {
  std::array<std::string_view, 6> names;
  std::size_t count = 0;
};
thread_local Recent recent;

std::string recent_kernels() {
  std::string text;
  const std::size_t size = recent.names.size();
  for (std::size_t i = recent.count > size ? recent.count - size : 0; i < recent.count; ++i)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", recent.names[i % size]);
  return text;
}

bool blocking() {
  static const bool value = [] {
    const char* text = std::getenv("LOCKSTEP_BLOCKING");
    return text && std::string_view(text) == "1";
  }();
  return value;
}

}  // namespace

void failed(std::string_view operation, std::string_view function, cudaError_t error) {
  const std::string running = recent_kernels();
  recent.count = 0;
  (void)cudaGetLastError();  // else the next call that is fine reports it again
  fail<DeviceError>("[{}] {}: {} ({}){}", operation, function, cudaGetErrorString(error),
                    cudaGetErrorName(error),
                    running.empty() ? "" : fmt::format("; launched before: {}", running));
}

namespace {

thread_local std::vector<std::weak_ptr<gpu::HostWait>> waits;

}  // namespace

// Not within itself: it may read on the host, too.
bool wait_as_asked(const std::function<bool()>& done) {
  if (current_recording()) return false;
  while (!waits.empty() && waits.back().expired()) waits.pop_back();
  if (waits.empty()) return false;
  const auto wait = waits.back().lock();
  std::vector<std::weak_ptr<gpu::HostWait>> outside;
  std::swap(waits, outside);
  try {
    (*wait)(done);
  } catch (...) {
    std::swap(waits, outside);
    throw;
  }
  std::swap(waits, outside);
  return true;
}

void wait(std::string_view operation, const Stream::State& stream) {
  check<NotRecordable>(
      !current_recording(),
      "[{}] in a step that is being recorded nothing can be read on the host (item, "
      "to_vector, a copy to the cpu, GradScaler::step, SyncBatchNorm): return the "
      "tensor, and read it after the step",
      operation);
  const cudaStream_t native = stream.stream.get();
  wait_as_asked([native] { return query(native) != cudaErrorNotReady; });
  call(operation, "cudaStreamSynchronize", cudaStreamSynchronize(native));
  recent.count = 0;
  stream.sources.check();
  left_behind().check();
}

namespace detail {

KernelRecord& record_of(std::string_view name) {
  std::lock_guard lock(registry().mutex);
  KernelRecord& record = registry().kernels[name];
  if (record.name.empty()) record.name = name;  // once: launches read it without the lock
  return record;
}

void launch_failed(std::string_view name, const LaunchShape& s, cudaError_t error) {
  failed(
      name,
      fmt::format("launch of ({}, {}, {}) blocks of ({}, {}, {}) threads with {} bytes of shared "
                  "memory",
                  s.grid.x, s.grid.y, s.grid.z, s.block.x, s.block.y, s.block.z, s.shared_bytes),
      error);
}

void launched(const KernelRecord& kernel, cudaStream_t stream) {
  recent.names[recent.count++ % recent.names.size()] = kernel.name;
  if (blocking() && !StepGraph::recording())
    call(kernel.name, "cudaStreamSynchronize", cudaStreamSynchronize(stream));
}

}  // namespace detail
}  // namespace lockstep::cuda

void lockstep::gpu::wait_by(const std::shared_ptr<HostWait>& wait) {
  std::erase_if(cuda::waits, [&](const auto& other) {
    return other.expired() || (!other.owner_before(wait) && !wait.owner_before(other));
  });
  cuda::waits.push_back(wait);
}

std::map<std::string, std::uint64_t> lockstep::gpu::kernel_launches() {
  std::map<std::string, std::uint64_t> result;
  cuda::Registry& all = cuda::registry();
  std::lock_guard lock(all.mutex);
  for (const auto& [name, record] : all.kernels)
    if (const std::uint64_t launches = record.launches) result[std::string(name)] = launches;
  return result;
}
