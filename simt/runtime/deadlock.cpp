/// What would wait for ever on a GPU, found and explained: a call that waits for all work of a
/// device while a stream waits for the calling thread, and a stream that is behind a waiting one in
/// their hardware queue. Only waits for streams of this process count: when another process comes,
/// is not known. And nothing on the device has moved since the wait began, for Config::patience.

#include <string>
#include <utility>

#include "lockstep/simt/runtime/runtime.h"

namespace simt::detail {
namespace {

std::string name_of(const Stream& stream) {
  return "stream " + std::to_string(stream.number) + " of device " + std::to_string(stream.device);
}

/// What its first operation waits for, which has begun; empty if that is no memory of this process.
const std::string& awaited_by(const Stream& stream) {
  static const std::string nothing;
  if (stream.queue.empty()) return nothing;
  const Operation& first = stream.queue.front();
  return first.begun && first.waits ? first.waits->awaits : nothing;
}

}  // namespace

/// Also notes when the wait for this mark began, and begins anew whenever something moves.
bool Runtime::stuck(Mark& mark) const {
  const auto now = std::chrono::steady_clock::now();
  const std::uint64_t moves = devices_[mark.stream->device]->moves;
  const bool host_function =
      std::any_of(streams.begin(), streams.end(), [](const auto& stream) { return stream->busy; });
  if (!mark.asked_since || mark.moves_then != moves || host_function) {
    mark.asked_since = now;
    mark.moves_then = moves;
  }
  return now - *mark.asked_since > config.patience;
}

// No document says that a driver keeps its lock while it waits for a device. It would explain why
// ranks that are threads hung on an H100 where one of them freed pinned memory while its stream
// waited for a rank whose thread was about to launch.
std::shared_ptr<void> Runtime::hold() {
  if (!config.cautious || holder_) return nullptr;
  holder_ = std::this_thread::get_id();
  return {this, [this](void*) { holder_.reset(); }};
}

void Runtime::wait_for_holder() {
  if (holder_ && *holder_ != std::this_thread::get_id()) wait_until([this] { return !holder_; });
}

// Documented: loading a kernel may need to synchronize the context (Programming Guide, "Lazy
// Loading"). Older guides also list pinned allocations ("Implicit Synchronization"), and projects
// that share a GPU among threads have met new streams that wait; on an H100 with CUDA 13 neither
// did. So all but loading is assumed.
void Runtime::may_synchronize(const char* call, Source source) {
  if (source == Source::assumed && !config.cautious) return;
  std::vector<MarkPointer> ends;
  for (const auto& stream : streams)
    if (stream->device == current_device())
      for (const Operation& operation : stream->queue)
        if (operation.waits && !operation.waits->awaits.empty()) ends.push_back(operation.mark);
  for (const MarkPointer& end : ends) wait(end, call);
  require(device(current_device()).fault.empty(), cudaErrorLaunchFailure);
}

/// Follows what the mark needs to the stream that waits for memory. `call`: null: a host thread
/// asks for the mark, which is a deadlock only if another stream is in front of it.
void Runtime::break_if_deadlocked(const Mark& mark, const char* call) {
  const Stream *waiter = nullptr, *behind = nullptr;
  for (const Stream* stream : streams_needed_for(mark)) {
    if (!awaited_by(*stream).empty()) waiter = stream;
    if (!stream->queue.empty() && in_front_of(*stream)) behind = stream;
  }
  if (!waiter || (!call && !behind)) return;
  std::string report = "deadlock: ";
  if (call) report += std::string(call) + " may wait for all work of its device";
  if (call && behind) report += ", ";
  if (behind)
    report += name_of(*behind) + " is behind stream " +
              std::to_string(in_front_of(*behind)->number) + " in hardware queue " +
              std::to_string(behind->connection) + " of " + std::to_string(config.connections) +
              " (CUDA_DEVICE_MAX_CONNECTIONS)";
  report += ", and " + name_of(*waiter) + " waits " + awaited_by(*waiter) +
            ", which nothing has written for " + std::to_string(config.patience.count()) + " ms";
  if (call) report += ". Make such calls before a stream can wait for this thread";
  break_device(waiter->device, std::move(report));
}

}  // namespace simt::detail
