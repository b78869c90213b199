/// What would wait for ever on a GPU, found and explained: a call that may wait for all work of a
/// device while a stream waits for the calling thread, and a stream that is behind a waiting one in
/// their hardware queue. Only waits for streams of this process count: who knows when another
/// process comes.

#include <string>
#include <utility>

#include "lockstep/simt/runtime/runtime.h"

namespace simt::detail {
namespace {

std::string name_of(const Stream& stream) {
  return "stream " + std::to_string(stream.number) + " of device " + std::to_string(stream.device);
}

/// What its first operation waits for; empty if that is no memory of this process.
const std::string& awaited_by(const Stream& stream) {
  static const std::string nothing;
  return stream.queue.empty() ? nothing : stream.queue.front().awaits;
}

}  // namespace

bool Runtime::nothing_moves() const {
  return std::chrono::steady_clock::now() - last_move_ > config.patience;
}

void Runtime::break_device(int index, std::string report) {
  reports.push_back(std::move(report));
  device(index).fault = reports.back();
  moved();
}

// "Two commands from different streams cannot run concurrently if [...] the host thread issues in
// between: a page-locked host memory allocation, a device memory allocation, ..." (Programming
// Guide, "Implicit Synchronization"); loading a kernel may need it as well ("Lazy Loading").
void Runtime::may_synchronize(const char* call) {
  std::vector<MarkPointer> ends;
  for (const auto& stream : streams)
    if (stream->device == current_device())
      for (const Operation& operation : stream->queue)
        if (!operation.awaits.empty()) ends.push_back(operation.mark);
  for (const MarkPointer& end : ends) wait(end, call);
  require(device(current_device()).fault.empty(), cudaErrorLaunchFailure);
}

void Runtime::break_if_stuck(const Mark& mark, const char* call) {
  for (const Stream* stream : streams_needed_for(mark))
    if (const std::string& awaited = awaited_by(*stream); !awaited.empty())
      return break_device(stream->device,
                          std::string("deadlock: ") + call +
                              " may wait for all work of its device, and " + name_of(*stream) +
                              " waits " + awaited +
                              ", which no stream writes. Make such calls before a stream can wait "
                              "for this thread");
}

// A stream may be behind one that is itself behind another: the first of them waits for memory.
void Runtime::find_blocked_queues() {
  for (const auto& stream : streams) {
    const Stream* front = stream->queue.empty() ? nullptr : in_front_of(*stream);
    if (!front || awaited_by(*front).empty() || !device(stream->device).fault.empty()) continue;
    break_device(stream->device, "deadlock: " + name_of(*stream) + " is behind stream " +
                                     std::to_string(front->number) + " in hardware queue " +
                                     std::to_string(stream->connection) + " of " +
                                     std::to_string(config.connections) +
                                     " (CUDA_DEVICE_MAX_CONNECTIONS), and " + "that one waits " +
                                     awaited_by(*front) + ", which no stream writes");
  }
}

}  // namespace simt::detail
