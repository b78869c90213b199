#include "lockstep/dist/gpu/device_communicator.h"

#include <utility>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/gpu/replays.h"
#include "lockstep/core/gpu/stream_slice.h"
#include "lockstep/dist/rendezvous/running_time.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep::dist {
namespace {

// The first product of a thread makes a library's handle and memory and loads its kernels.
void warm_up(Device device) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tensor one = Tensor::zeros({1, 1}, dtype, device);
    kernels::matmul(one, one, Tensor::empty({1, 1}, dtype, device));
  }
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(std::unique_ptr<HostCommunicator> host, EngineKind kind)
    : host_(std::move(host)), kind_(kind), calls_(QueuedCommunicator::queue_length) {
  membership().ranks_in_job = host_->membership().ranks_in_job;
}

// A collective that is under way must not outlive its memory.
DeviceCommunicator::~DeviceCommunicator() {
  if (!engine_) return;
  try {
    if (next_ > 0 && !failure_) finish(next_ - 1, {});
    if (!replays_ || failure_) return;
    const Event end(device_);
    end.record(*replays_);
    wait_on_host([&] { return end.done(); }, "recorded step", host_->timeout());
  } catch (const Error&) {
    // A rank that waits for the call is told. Here only the streams matter, which are released.
  }
}

// ---- calls ----

Tensor DeviceCommunicator::allocate(std::int64_t numel, DType dtype, Device device) {
  DeviceEngine* const engine = device == Device{} ? nullptr : engine_for(device);
  if (!engine) return host_->allocate(numel, dtype);
  const auto elements = static_cast<std::size_t>(std::max<std::int64_t>(1, numel));
  // What this rank still computes may use memory that has ended here, and is given out again.
  if (!StepGraph::recording()) {
    if (next_ > 0) finish(next_ - 1, {});
    const Event end(device);
    end.record(Stream::current(device));
    wait_for(end, "allocate");
  }
  return Tensor::over(engine->allocate(elements * size_of(dtype)), 0, {numel}, dtype);
}

DeviceEngine* DeviceCommunicator::engine_for(Device device) {
  if (!asked_) {
    device_ = device;
    // What may wait for the whole GPU comes before the ranks meet in make_engine: afterwards a
    // stream of a faster rank may wait for this one.
    if (kind_ != EngineKind::none) {
      stream_ = Stream::create(device, StreamUse::communicating);
      warm_up(device);
    }
    try {
      engine_ = make_engine(kind_, host_->choice().requested, device, *host_);
    } catch (const CommError& error) {
      host_->abort(error.what());
      throw;
    }
    if (!engine_) stream_.reset();
    asked_ = true;
  }
  check<DeviceError>(!engine_ || device == device_,
                     "[communicator] it reaches {}, and the tensor lies on {}: a communicator "
                     "belongs to one GPU",
                     device_.to_string(), device.to_string());
  return engine_.get();
}

Work DeviceCommunicator::enqueue(const CollectiveCall& arguments, std::string_view name) {
  const bool on_host =
      arguments.operation == Operation::barrier || arguments.buffer.device() == Device{};
  if (on_host || !engine_for(arguments.buffer.device())) return host_->enqueue(arguments, name);
  if (failure_) return Work(this, next_);
  Call& call = next_call();
  try {
    // One rank may record the step that another takes as it is.
    const std::string known = std::string(name) + (StepGraph::recording() ? ", recorded" : "");
    call.validation = host_->validate_call(arguments, known, engine_->place_of(arguments.buffer));
    check_health();
    launch(call, arguments);
  } catch (const CommError& error) {
    if (!failure_) break_by(std::current_exception(), error.what());
    return Work(this, next_);
  } catch (const Error& error) {  // of this rank alone: the others count on the call
    break_by(std::current_exception(), error.what());
    throw;
  }
  return Work(this, next_++);
}

DeviceCommunicator::Call& DeviceCommunicator::next_call() {
  Call& call = this->call(next_);
  if (next_ >= calls_.size() && !StepGraph::recording()) finish(call.sequence, {});
  if (!StepGraph::recording()) release_ended();
  return call;
}

void DeviceCommunicator::launch(Call& call, const CollectiveCall& arguments) {
  const bool recorded = StepGraph::recording();
  if (StepGraph::first_time(this))
    StepGraph::depends_on(wait_, [this] {
      wait_before_replay();
      return true;
    });
  if (!call.ready || recorded || call.recorded) {
    call.ready.emplace(device_);
    call.done.emplace(device_);
  }
  call.sequence = next_;
  call.arguments = arguments;
  call.recorded = recorded;
  bytes_moved_ += payload(call.arguments);
  gpu::wait_by(wait_);
  const Stream compute = Stream::current(device_);
  call.ready->record(compute);
  stream_->wait(*call.ready);
  {
    const StreamGuard guard(*stream_);
    const gpu::StreamSlice slice(name_of(call.arguments.operation), stream_->native());
    engine_->enqueue(call.arguments, *stream_);
  }
  call.done->record(*stream_);
  if (recorded) {  // the graph keeps what it needs
    call.arguments = {};
    replays_ = compute;
  }
}

// A recording launches its calls on the stream that replays it, and knows nothing of those that are
// under way on this communicator's: both would use the same flags.
void DeviceCommunicator::wait_before_replay() {
  if (next_ == 0) return;
  const Call& last = call(next_ - 1);
  if (!last.recorded && last.done) Stream::current(device_).wait(*last.done);
}

// Bytes that arrive from other ranks; see Communicator::bytes_moved.
std::uint64_t DeviceCommunicator::payload(const CollectiveCall& arguments) const {
  const auto bytes = static_cast<std::uint64_t>(arguments.buffer.bytes());
  const auto n = static_cast<std::uint64_t>(size());
  switch (arguments.operation) {
    case Operation::all_reduce: return 2 * (n - 1) * bytes / n;
    case Operation::reduce_scatter:
    case Operation::all_gather: return (n - 1) * bytes / n;
    case Operation::broadcast: return rank() == arguments.root ? 0 : bytes;
    case Operation::barrier: break;
  }
  return 0;
}

// Calls end in order. Their tensors are released as soon as possible.
void DeviceCommunicator::release_ended() {
  released_ = std::max(released_, next_ - std::min<std::uint64_t>(next_, calls_.size()));
  while (released_ < next_ && ended(call(released_))) ++released_;
}

// ---- their ends ----

bool DeviceCommunicator::ended(Call& call) {
  if (call.recorded || !call.arguments.buffer.defined()) return true;
  if (!call.validation.progress() || !call.done->done()) return false;
  call.arguments = {};
  return true;
}

bool DeviceCommunicator::progress(std::uint64_t sequence) {
  check_health();
  Call& it = call(sequence);
  return sequence < next_ && (it.sequence != sequence || ended(it));
}

void DeviceCommunicator::wait(std::uint64_t sequence, std::optional<Seconds>) {
  check_health();
  Call& it = call(sequence);
  if (it.sequence != sequence || !it.done) return;
  if (!it.recorded || StepGraph::recording()) Stream::current(device_).wait(*it.done);
}

void DeviceCommunicator::finish(std::uint64_t sequence, std::optional<Seconds> timeout) {
  check<StateError>(!StepGraph::recording(),
                    "[communicator] the host cannot wait for a collective in a recorded step");
  Call& it = call(sequence);
  if (it.sequence != sequence || it.recorded) return check_health();
  wait(sequence, timeout);
  if (ended(it)) return;
  try {
    it.validation.wait(timeout);  // names the rank that does not come
  } catch (const CommError&) {
    check_health();
  }
  wait_on_host([&] { return ended(it); }, name_of(it.arguments.operation),
               timeout.value_or(host_->timeout()));
}

template <class E>
void DeviceCommunicator::give_up(const std::string& reason) {
  break_by(std::make_exception_ptr(E(reason)), reason);
  std::rethrow_exception(failure_);
}

void DeviceCommunicator::wait_on_host(const std::function<bool()>& done, std::string_view what,
                                      Seconds limit) {
  RunningTime waited;
  for (unsigned round = 0; !done(); ++round) {
    check_health();
    if (waited.look(now()) > limit)
      give_up<CommError>(fmt::format("[{}] rank {}: timed out after {:g} s on the GPU; {}", what,
                                     rank(), limit.count(), missing_rank()));
    relax(round, what);
  }
}

void DeviceCommunicator::relax(unsigned round, std::string_view what) {
  try {
    host_->transport().relax(round);
  } catch (const PeerError& error) {
    give_up<PeerError>(fmt::format("[{}] rank {}: {}", what, rank(), error.what()));
  }
}

// The time that this rank's kernels take does not count: a call is waited for when the stream has
// come to it. (Of a recorded step it does: nobody tells where in it the stream is.) What the host
// waits for may not need the call, or its headers: other ranks may even wait for this one before
// they send theirs (a host collective within backward, behind a bucket that has been launched). So
// the call itself is finished, which names the rank that does not come, only after half of the
// timeout.
void DeviceCommunicator::wait_beside(const std::function<bool()>& done) {
  RunningTime waited;
  std::pair<std::uint64_t, std::uint64_t> last;
  for (unsigned round = 0; !done(); ++round) {
    check_health();
    release_ended();
    // A recorded step may call another communicator than this one.
    const gpu::Replays replays = gpu::replays_on(replays_.value_or(Stream::current(device_)));
    const bool reached = released_ < next_ && call(released_).ready->done();
    const std::pair ended(released_, replays.ended);
    if ((!reached && replays.under_way == 0) || std::exchange(last, ended) != ended)
      waited.restart();
    const Seconds time = waited.look(now());
    if (reached && time > host_->timeout() / 2)
      finish(released_, {});
    else if (replays.under_way > 0 && time > host_->timeout())
      give_up<CommError>(fmt::format(
          "[recorded step] rank {}: a replay has not ended after {:g} s; {}", rank(),
          host_->timeout().count(), missing_rank("which rank does not replay it is not known")));
    else
      relax(round, "stream");
  }
}

void DeviceCommunicator::check_health() {
  if (failure_) std::rethrow_exception(failure_);
  if (next_ > 0) try {
      call(next_ - 1).validation.progress();
    } catch (const CommError& error) {  // the host's is broken: streams may wait for ever
      break_by(std::current_exception(), error.what());
      throw;
    }
  if (const std::string error = engine_ ? engine_->failure() : ""; !error.empty())
    give_up<CommError>(fmt::format("{}; {}", error, missing_rank()));
}

void DeviceCommunicator::break_by(std::exception_ptr failure, std::string_view reason) noexcept {
  failure_ = std::move(failure);
  host_->abort(reason);
  if (!engine_) return;
  engine_->abort(*stream_);
  if (replays_) engine_->abort(*replays_);
}

// Asks the transport for bytes that no call needs any more: its error names the missing rank. Over
// TCP it needs 0.2 s to tell a rank that was killed from one that has given up.
std::string DeviceCommunicator::missing_rank(std::string_view else_say) {
  Transport& transport = host_->transport();
  std::byte unwanted{};
  try {
    for (const Seconds end = now() + Seconds(0.3); now() < end; transport.relax(1000))
      for (int peer = 0; peer < size(); ++peer)
        if (peer != rank()) transport.receive(peer, std::span(&unwanted, 1));
  } catch (const PeerError& error) {
    return error.what();
  }
  return std::string(else_say);
}

void DeviceCommunicator::abort(std::string_view reason) noexcept {
  if (failure_) return;
  try {
    break_by(std::make_exception_ptr(CommError(std::string(reason))), reason);
  } catch (const std::bad_alloc&) {
    break_by(std::current_exception(), reason);
  }
}

}  // namespace lockstep::dist
