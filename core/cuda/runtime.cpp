// Devices, streams and events.
#include <cstdlib>
#include <vector>

#include "lockstep/core/cuda/state.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/graph.h"

namespace lockstep {

using cuda::call;

namespace {

// Which of the two kinds is decided by the headers and libraries that the build chose.
constexpr Device::Kind this_kind = Device::Kind::LOCKSTEP_GPU_KIND;

void make_current(Device device) { call("device", "cudaSetDevice", cudaSetDevice(device.index)); }

/// Freed memory stays in the pool: giving it back to the system would cost every step anew. It is
/// never reused before its stream has passed the place where it was freed. Otherwise CUDA would
/// make the stream that reuses it wait for that stream, which may be waiting for another rank.
void keep_freed_memory(Device device) {
  cudaMemPool_t pool{};
  call("stream", "cudaDeviceGetDefaultMemPool", cudaDeviceGetDefaultMemPool(&pool, device.index));
  std::uint64_t threshold = ~std::uint64_t{0};
  call("stream", "cudaMemPoolSetAttribute",
       cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  int allowed = 0;
  call("stream", "cudaMemPoolSetAttribute",
       cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &allowed));
}

std::shared_ptr<Stream::State> make_stream(Device device, StreamUse use = StreamUse::computing) {
  cuda::check_device("stream", device);
  make_current(device);
  keep_freed_memory(device);
  auto state = std::make_shared<Stream::State>();
  state->device = device;
  state->use = use;
  state->stream = cuda::take_stream("stream", use);
  void* const faults = cuda::take_pinned("stream", sizeof(cuda::Faults));
  state->faults = std::make_shared<cuda::FaultSource>();
  state->faults->faults = decltype(state->faults->faults)(new (faults) cuda::Faults{});
  state->sources.add(state->faults);
  return state;
}

struct OwnStreams {
  std::shared_ptr<Stream::State> computing, reading;
};

// The streams of this thread, by device index; null until it first asks.
thread_local std::vector<OwnStreams> own_streams;

OwnStreams& streams_of_this_thread(Device device) {
  if (device.kind != this_kind || device.index < 0) cuda::check_device("stream", device);
  const auto index = static_cast<std::size_t>(device.index);
  if (own_streams.size() <= index) {
    cuda::check_device("stream", device);
    own_streams.resize(index + 1);
  }
  OwnStreams& streams = own_streams[index];
  if (!streams.computing) streams = {make_stream(device), make_stream(device)};
  return streams;
}

const std::shared_ptr<Stream::State>& current_stream(Device device) {
  for (const StreamGuard* guard = StreamGuard::innermost(); guard; guard = guard->outer())
    if (guard->stream().device() == device) return guard->stream().shared();
  return streams_of_this_thread(device).computing;
}

const std::shared_ptr<Stream::State>& cpu_stream() {
  static const auto state = std::make_shared<Stream::State>();
  return state;
}

bool on_cpu(Device device) { return device.kind == Device::Kind::cpu; }

}  // namespace

Stream Stream::current(Device device) {
  return Stream(on_cpu(device) ? cpu_stream() : current_stream(device));
}

Stream Stream::reading(Device device) {
  return Stream(on_cpu(device) ? cpu_stream() : streams_of_this_thread(device).reading);
}

Stream Stream::create(Device device, StreamUse use) {
  return Stream(on_cpu(device) ? cpu_stream() : make_stream(device, use));
}

Device Stream::device() const { return state_->device; }
void* Stream::native() const { return state_->stream.get(); }

void Stream::synchronize() const {
  if (!on_cpu(device())) cuda::wait("synchronize", *state_);
}

void Stream::check() const {
  if (on_cpu(device())) return;
  state_->sources.check();
  cuda::left_behind().check();
}

void Stream::wait(const Event& event) const {
  if (on_cpu(device())) return;
  make_current(device());
  call("wait", "cudaStreamWaitEvent",
       cudaStreamWaitEvent(state_->stream.get(), event.state().event.get(), 0));
  state_->sources.add(event.state().sources);
}

Event::Event(Device device, bool timed) {
  auto state = std::make_shared<State>();
  state->device = device;
  if (!on_cpu(device)) {
    cuda::check_device("event", device);
    make_current(device);
    cudaEvent_t event{};
    call("event", "cudaEventCreateWithFlags",
         cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
    state->event = decltype(state->event)(event);
  }
  state_ = std::move(state);
}

void Event::record(const Stream& stream) const {
  if (on_cpu(stream.device())) return;
  make_current(stream.device());
  call("record", "cudaEventRecord",
       cudaEventRecord(state_->event.get(), static_cast<cudaStream_t>(stream.native())));
  state_->sources.add(stream.state().sources);
}

void Event::synchronize() const {
  if (on_cpu(state_->device)) return;
  call("synchronize", "cudaEventSynchronize", cudaEventSynchronize(state_->event.get()));
  state_->sources.check();
}

bool Event::done() const {
  if (on_cpu(state_->device)) return true;
  const cudaError_t answer = cuda::query(state_->event.get());
  if (answer == cudaErrorNotReady) return false;
  call("done", "cudaEventQuery", answer);
  return true;
}

double Event::milliseconds_since(const Event& earlier) const {
  if (on_cpu(state_->device)) return 0;
  float milliseconds = 0;
  call("milliseconds_since", "cudaEventElapsedTime",
       cudaEventElapsedTime(&milliseconds, earlier.state().event.get(), state_->event.get()));
  return static_cast<double>(milliseconds);
}

namespace gpu {

std::optional<Device::Kind> kind() { return this_kind; }

int count() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;  // no driver: none
}

Device default_device(int local_rank) {
  const int devices = this_kind == Device::Kind::cuda ? count() : 0;
  return devices > 0 ? Device{this_kind, local_rank % devices} : Device{};
}

void nudge() {
  if constexpr (this_kind == Device::Kind::sim) (void)count();
}

void prepare_for_threads() {
  cuda::ranks_are_threads = true;
  (void)::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)::setenv("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "32", 0);
}

std::string describe(int index) {
  cudaDeviceProp properties{};
  call("describe", "cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, index));
  return fmt::format("{}, {} multiprocessors, compute capability {}.{}", properties.name,
                     properties.multiProcessorCount, properties.major, properties.minor);
}

}  // namespace gpu

namespace cuda {

void check_device(std::string_view operation, Device device) {
  if (device.kind != this_kind)
    fail<DeviceError>("[{}] this build has no device '{}': besides the cpu it drives {}", operation,
                      device.to_string(), Device::name_of(this_kind));
  const int devices = gpu::count();
  if (device.index < 0 || device.index >= devices)
    fail<DeviceError>("[{}] there is no device '{}': {} found", operation, device.to_string(),
                      devices);
}

Queue queue_of(Device device) {
  const Stream::State& state = *current_stream(device);
  if (StepGraph::noting()) [[unlikely]]
    check_captured(state);
  make_current(device);
  return {state.stream.get(), state.faults->faults.get(), state.use};
}

int multiprocessors(Device device) {
  int result = 0;
  call("device", "cudaDeviceGetAttribute",
       cudaDeviceGetAttribute(&result, cudaDevAttrMultiProcessorCount, device.index));
  return result;
}

}  // namespace cuda
}  // namespace lockstep
