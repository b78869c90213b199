// How a host communicator waits for long: second reading.

#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::dist {

WaitWatch HostCommunicator::make_watch(const Transport& transport,
                                       const CommunicatorOptions& options) {
  return {options.timeout, transport.longest_nap(), options.board, options.members};
}

void HostCommunicator::tell_wait() {
  const Call& call = front();
  watch_.exchange(executor_.awaited(), fmt::format("{} #{} '{}'", name_of(call.header.operation),
                                                   front_, call.name.data()));
}

std::string HostCommunicator::awaited() const {
  return fmt::format("{}; {}", watch_.blame(executor_.awaited(), executor_.position()),
                     recorder_.last_seen(executor_.awaited()));
}

}  // namespace lockstep::dist
