// How a host communicator waits for long: second reading.

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/transport/pulse.h"

namespace lockstep::dist {

WaitWatch HostCommunicator::make_watch(const Transport& transport,
                                       const CommunicatorOptions& options) {
  return {options.timeout, transport.longest_nap(), options.board, options.members};
}

// Not in a simulated world, whose time stands still while a rank works.
bool HostCommunicator::hears_of_work() const {
  return watch_.board() && size() > 1 && transport_->longest_nap() < Seconds(1e6);
}

std::shared_ptr<void> HostCommunicator::begin_work() {
  if (!hears_of_work()) return nullptr;
  return std::make_shared<Pulse>(watch_.board(), timeout());
}

void HostCommunicator::relax(unsigned round, bool) {
  gpu::nudge();  // in the simulator: lets this rank's streams move on meanwhile
  if (watch_.due()) tell_wait();
  const std::int64_t begin = trace::here.recorder ? trace::here.recorder->now() : 0;
  transport_->relax(round);
  if (trace::here.recorder) trace::here.recorder->idle(executor_.awaited(), begin);
}

void HostCommunicator::tell_wait() {
  // A rank that hangs must not keep the others from a new world. But a world also ends when a rank
  // ends well: what that rank had to send is here by then.
  try {
    if (watch_world_) watch_world_();
  } catch (const PeerError&) {
    if (!executor_.progress()) throw;
  }
  const Call& call = front();
  watch_.exchange(executor_.awaited(), fmt::format("{} #{} '{}'", name_of(call.header.operation),
                                                   front_, call.name.data()));
}

void HostCommunicator::look_again_or_time_out(Seconds limit) {
  if (watch_.board()) {
    tell_wait();  // and hear what the others have told since the last time
    if (watch_.look(now(), limit) <= limit) return;
  }
  const int awaited = executor_.awaited();
  const auto [text, blame] = watch_.blame(awaited, executor_.position());
  throw blaming(blame, CommError(fmt::format("timed out after {:g} s, {}; {}", limit.count(), text,
                                             recorder_.last_seen(awaited))));
}

}  // namespace lockstep::dist
