/// Streams: queues of operations, and who runs them when (simt::Streams).

#include <algorithm>
#include <iterator>
#include <utility>

#include "lockstep/simt/runtime/capture.h"
#include "lockstep/simt/runtime/runtime.h"

namespace simt::detail {

Stream& Runtime::stream(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy) return *device(current_device()).null_stream;
  for (const auto& known : streams)
    if (known.get() == handle && !known->destroyed) {
      require(device(known->device).fault.empty(), cudaErrorLaunchFailure);
      return *known;
    }
  throw Refusal{cudaErrorInvalidResourceHandle};
}

Stream* Runtime::make_stream(int on_device, unsigned flags, int priority) {
  streams.push_back(std::make_unique<Stream>());
  Stream& made = *streams.back();
  made.device = on_device;
  made.number = device(on_device).streams++;
  deal_connection(made);
  made.blocking = !(flags & cudaStreamNonBlocking);
  made.priority = priority;
  return &made;
}

/// In turn. The legacy default stream, which is the first, shares with none here: what a GPU does
/// with it is not documented.
void Runtime::deal_connection(Stream& stream) const {
  stream.connection = stream.number == 0 ? -1 : (stream.number - 1) % config.connections;
}

/// Some streams hurry, some dawdle, some do nothing unless they are waited for; and the same stream
/// another way a while later, so that each two meet in each way.
void Runtime::draw_pace(Stream& stream) {
  constexpr int paces[] = {0, 2, 6};
  stream.pace = paces[delays_.below(std::size(paces))];
}

void Runtime::enqueue(Stream& to, Operation operation) {
  looks_ = 0;
  if (to.queue.empty() || delays_.below(8) == 0) draw_pace(to);
  // The legacy default stream waits for all blocking streams of its device, and they for it.
  const Stream* null_stream = device(to.device).null_stream;
  std::vector<MarkPointer>& after = operation.after;
  if (&to == null_stream) {
    for (const auto& other : streams)
      if (other->blocking && other->device == to.device && other->last)
        after.push_back(other->last);
  } else if (to.blocking && null_stream->last) {
    after.push_back(null_stream->last);
  }
  std::erase_if(after, [](const MarkPointer& one) { return one->done; });
  if (!operation.mark) operation.mark = std::make_shared<Mark>();
  operation.mark->stream = &to;
  operation.ticket = ++device(to.device).operations;
  to.last = operation.mark;
  to.queue.push_back(std::move(operation));
  if (config.streams == Streams::eager) run_all_that_can();
}

bool Runtime::runnable(const Stream& stream) const {
  return !stream.busy && !stream.queue.empty() &&
         std::all_of(stream.queue.front().after.begin(), stream.queue.front().after.end(),
                     [](const MarkPointer& mark) { return mark->done; }) &&
         !in_front_of(stream);
}

namespace {

/// The first operation of the stream that is still in its hardware queue: what has begun has left
/// it, unless it waits there. Host functions are none of the GPU's.
const Operation* in_hardware_queue(const Stream& stream) {
  for (const Operation& one : stream.queue)
    if ((!one.begun || (one.waits && one.waits->in_queue)) &&
        one.host_function_of == std::thread::id())
      return &one;
  return nullptr;
}

}  // namespace

Stream* Runtime::in_front_of(const Stream& stream) const {
  const bool all_apart = devices_[stream.device]->streams <= config.connections + 1;
  if (all_apart || stream.queue.front().begun) return nullptr;
  Stream* first = nullptr;
  std::uint64_t ticket = stream.queue.front().ticket;
  for (const auto& other : streams) {
    if (other->connection != stream.connection || other->device != stream.device ||
        other.get() == &stream)
      continue;
    const Operation* queued = in_hardware_queue(*other);
    if (!queued || queued->ticket >= ticket) continue;
    first = other.get();
    ticket = queued->ticket;
  }
  return first;
}

/// False: the operation has not ended, as it waits for something that is not here yet.
bool Runtime::run_first(Stream& stream) {
  stream.busy = true;
  bool ended = true;
  {
    Operation operation = std::move(stream.queue.front());
    stream.queue.pop_front();
    // A broken context does nothing any more.
    if (operation.run && device(stream.device).fault.empty()) ended = operation.run();
    if (ended) {
      operation.mark->done = true;
      operation.mark->time = std::chrono::steady_clock::now();
    } else {
      operation.begun = true;
      stream.queue.push_front(std::move(operation));
    }
  }
  stream.busy = false;
  if (ended) {
    ++device(stream.device).moves;
    changed.notify_all();
  }
  return ended;
}

/// A host function of another host thread may wait for this one: that thread shall run it, or one
/// that waits for it.
bool Runtime::for_this_thread(const Stream& stream) {
  const std::thread::id host = stream.queue.front().host_function_of;
  return host == std::thread::id() || host == std::this_thread::get_id();
}

void Runtime::run_all_that_can() {
  for (std::size_t i = 0; i < streams.size();) {
    const std::uint64_t moves = moves_;
    if (runnable(*streams[i]) && for_this_thread(*streams[i]) &&
        (run_first(*streams[i]) || moves_ != moves))
      i = 0;  // others may have waited for it
    else
      ++i;
  }
}

/// Streams whose first operation must run before the mark can be reached.
std::vector<Stream*> Runtime::streams_needed_for(const Mark& mark) const {
  std::vector<Stream*> needed{mark.stream};
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (needed[i]->queue.empty()) continue;
    const auto need = [&needed](Stream* other) {
      if (std::find(needed.begin(), needed.end(), other) == needed.end()) needed.push_back(other);
    };
    for (const MarkPointer& one : needed[i]->queue.front().after)
      if (!one->done) need(one->stream);
    if (Stream* other = in_front_of(*needed[i])) need(other);
  }
  return needed;
}

/// Runs one operation on the way to the mark; false if none can run now, or it has not ended.
bool Runtime::step_towards(const Mark& mark) {
  std::vector<Stream*> needed = streams_needed_for(mark);
  std::erase_if(needed, [this](const Stream* stream) { return !runnable(*stream); });
  return !needed.empty() && run_first(*needed[delays_.below(needed.size())]);
}

/// Lets other threads of the host in, for so long or until an operation has ended.
void Runtime::open_lock_for(std::chrono::microseconds time) {
  std::unique_lock lock(mutex, std::adopt_lock);
  changed.wait_for(lock, time);
  lock.release();
}

/// No call tells when memory changes: the memory is looked at again and again, less and less often
/// while nothing moves.
class Patience {
 public:
  std::chrono::microseconds next(std::uint64_t moves) {
    constexpr std::chrono::microseconds least(20), most(500);
    pause_ = std::exchange(moves_, moves) == moves ? std::min(2 * pause_, most) : least;
    return pause_;
  }

 private:
  std::chrono::microseconds pause_{10};
  std::uint64_t moves_ = 0;
};

void Runtime::wait(const MarkPointer& mark, const char* call) {
  Patience patience;
  while (!mark->done) {
    drift();
    if (mark->done || step_towards(*mark)) continue;
    // What it needs waits for memory, which any stream may write, or is inside of another host
    // thread's host function.
    run_all_that_can();
    if (!mark->done) open_lock_for(patience.next(moves_));
    if (!mark->done && stuck(*mark)) break_if_deadlocked(*mark, call);
  }
}

void Runtime::wait_until(const std::function<bool()>& there) {
  Patience patience;
  while (!there()) {
    run_all_that_can();
    if (there()) return;
    open_lock_for(patience.next(moves_));
  }
}

void Runtime::wait_for(Stream& stream) {
  if (stream.capture) invalidate(*stream.capture, cudaErrorStreamCaptureUnsupported);
  const int of = stream.device;
  enqueue(stream, {});
  wait(MarkPointer(stream.last));
  require(device(of).fault.empty(), cudaErrorLaunchFailure);
}

void Runtime::wait_for_device(int index, const char* call) {
  std::vector<MarkPointer> ends;  // waiting may open the lock, and others add streams then
  for (const auto& stream : streams)
    if (stream->device == index && stream->last) ends.push_back(stream->last);
  const std::shared_ptr<void> held = call ? hold() : nullptr;
  for (const MarkPointer& end : ends) wait(end, call);
}

void Runtime::wait_for_all(const char* call) {
  for (int index = 0; index < config.devices; ++index) wait_for_device(index, call);
}

void Runtime::drift() {
  forget_destroyed_streams();
  if (config.streams == Streams::eager) return run_all_that_can();
  // A host that looks again and again waits for something. On a GPU no stream would stand still for
  // ever, and a peer may wait for this one.
  constexpr std::uint64_t many = 500;
  const bool all_move = ++looks_ > many;
  const auto may_move = [this, all_move](const Stream& stream) {
    return (stream.pace || all_move) && runnable(stream) && for_this_thread(stream);
  };
  const auto moves = [this](const Stream& stream) {
    return stream.pace == 0 || delays_.below(stream.pace) == 0;
  };
  for (std::size_t i = 0; i < streams.size(); ++i)  // the lock may be open while one runs
    while (i < streams.size() && may_move(*streams[i]) && moves(*streams[i]) &&
           run_first(*streams[i])) {
    }
}

void Runtime::nudge(const MarkPointer& mark) {
  if (mark && !mark->done && config.streams == Streams::late) step_towards(*mark);
  if (mark && !mark->done && stuck(*mark)) break_if_deadlocked(*mark, nullptr);
}

bool Runtime::idle(const Stream& stream) const {
  if (&stream != devices_[stream.device]->null_stream) return !stream.last || stream.last->done;
  return std::all_of(streams.begin(), streams.end(), [&stream](const auto& other) {
    return !other->blocking || other->device != stream.device || !other->last || other->last->done;
  });
}

void Runtime::drop_queues() {
  for (const auto& stream : streams) {
    for (Operation& operation : stream->queue) operation.mark->done = true;
    stream->queue.clear();
    if (stream->capture) stream->capture->invalid = true;
    stream->capture.reset();
  }
  captures.clear();
}

void Runtime::forget_destroyed_streams() {
  std::erase_if(streams, [](const auto& stream) {
    return stream->destroyed && !stream->busy && stream->queue.empty();
  });
}

}  // namespace simt::detail
