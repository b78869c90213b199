// How a host communicator waits for long: second reading.

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::dist {

WaitWatch HostCommunicator::make_watch(const Transport& transport,
                                       const CommunicatorOptions& options) {
  return {options.timeout, transport.longest_nap(), options.board, options.members};
}

void HostCommunicator::relax(unsigned round, bool) {
  gpu::nudge();  // in the simulator: lets this rank's streams move on meanwhile
  if (watch_.due()) tell_wait();
  const std::int64_t begin = trace::current ? trace::current->now() : 0;
  transport_->relax(round);
  if (trace::current) trace::current->idle(executor_.awaited(), begin);
}

void HostCommunicator::tell_wait() {
  // A rank that hangs must not keep the others from a new world. But a world also ends when a rank
  // ends well: what that one had to send is here by then.
  try {
    if (watch_world_) watch_world_();
  } catch (const PeerError&) {
    if (!executor_.progress()) throw;
  }
  const Call& call = front();
  watch_.exchange(executor_.awaited(), fmt::format("{} #{} '{}'", name_of(call.header.operation),
                                                   front_, call.name.data()));
}

CommError HostCommunicator::timed_out(Seconds limit) const {
  const int awaited = executor_.awaited();
  const auto [text, culprit] = watch_.blame(awaited, executor_.position());
  return blaming(culprit, CommError(fmt::format("timed out after {:g} s, {}; {}", limit.count(),
                                                text, recorder_.last_seen(awaited))));
}

}  // namespace lockstep::dist
