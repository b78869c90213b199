// In place of cuda/, in builds without a GPU and without the simulator: there is the cpu alone.
#include "lockstep/core/gpu/device_memory.h"
#include "lockstep/core/gpu/facts.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/gpu/host_wait.h"
#include "lockstep/core/gpu/replays.h"
#include "lockstep/core/gpu/stream_slice.h"

namespace lockstep {

struct Stream::State {};
struct Event::State {};

namespace {

[[noreturn]] void absent(std::string_view operation, Device device) {
  fail<DeviceError>("[{}] this build has no device '{}': it drives the cpu alone", operation,
                    device.to_string());
}

void check_cpu(std::string_view operation, Device device) {
  if (device.kind != Device::Kind::cpu) absent(operation, device);
}

}  // namespace

Stream Stream::current(Device device) {
  check_cpu("stream", device);
  static const auto state = std::make_shared<State>();
  return Stream(state);
}
Stream Stream::reading(Device device) { return current(device); }
Stream Stream::create(Device device, StreamUse) { return current(device); }
Device Stream::device() const { return {}; }
void Stream::synchronize() const {}
void Stream::check() const {}
void Stream::wait(const Event&) const {}
void* Stream::native() const { return nullptr; }

Event::Event(Device device, bool) : state_(std::make_shared<State>()) {
  check_cpu("event", device);
}
void Event::record(const Stream&) const {}
void Event::synchronize() const {}
bool Event::done() const { return true; }
double Event::milliseconds_since(const Event&) const { return 0; }

struct StepGraph::State {
  std::function<void()> step;
};
StepGraph::StepGraph(std::function<void()> step, Device device)
    : state_(new State{std::move(step)}) {
  check_cpu("step graph", device);
}
StepGraph::~StepGraph() = default;
StepGraph::StepGraph(StepGraph&&) noexcept = default;
StepGraph& StepGraph::operator=(StepGraph&&) noexcept = default;
StepGraph::State& StepGraph::state() const {
  check<StateError>(state_ != nullptr, "[step graph] it was moved away");
  return *state_;
}
bool StepGraph::operator()() { return state().step(), false; }
std::size_t StepGraph::kernels() const { return 0; }
int StepGraph::recordings() const { return 0; }
void StepGraph::depends_on(std::function<bool()>) {}  // NOLINT: the others keep it
bool StepGraph::recording() { return false; }
bool StepGraph::first_time(const void*) { return false; }
void StepGraph::depends_on_surroundings(std::uint64_t (*)()) {}
void StepGraph::at_replay(std::function<void()>) {}   // NOLINT: the others keep it
void StepGraph::at_end(std::function<void()>) {}      // NOLINT: the others keep it
void StepGraph::at_failure(std::function<void()>) {}  // NOLINT: the others keep it
StepGraph::Pause::Pause() : recording_(nullptr) { (void)mode_; }
StepGraph::Pause::~Pause() = default;

namespace gpu {

std::optional<Device::Kind> kind() { return {}; }
int count() { return 0; }
Device default_device(int) { return {}; }
void nudge() {}
void prepare_for_threads() {}
std::string describe(int index) { absent("describe", {Device::Kind::cuda, index}); }
std::map<std::string, std::uint64_t> kernel_launches() { return {}; }
Facts facts() {
  Facts none;
  none.trouble = "this build drives no GPU";
  return none;
}
std::optional<Memory> memory(int) { return {}; }
void wait_by(const std::shared_ptr<HostWait>&) {}
Replays replays_on(const Stream&) { return {}; }
Storage allocate_pinned(std::size_t bytes) { return Storage::allocate(bytes); }
StreamSlice::StreamSlice(std::string_view, void*) : noted_(false) {}
StreamSlice::~StreamSlice() { (void)noted_; }

void* allocate(std::size_t, const Stream&) { absent("allocate", {Device::Kind::cuda, 0}); }
void release(void*, const Stream&) noexcept {}
void note_made(Storage::Block&) {}
void note_use(const void*) {}
void copy(void*, Device to_device, const void*, Device from_device, std::size_t) {
  absent("copy", to_device.kind == Device::Kind::cpu ? from_device : to_device);
}
void fill_zero(void*, std::size_t, Device device) { absent("fill_zero", device); }
void fill(void*, std::int64_t, DType, const void*, Device device) { absent("fill", device); }

}  // namespace gpu
}  // namespace lockstep
