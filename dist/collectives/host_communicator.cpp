#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::dist {

HostCommunicator::HostCommunicator(std::unique_ptr<Transport> transport,
                                   CommunicatorOptions options)
    : QueuedCommunicator(transport->size(), make_watch(*transport, options)),
      transport_(std::move(transport)),
      nodes_(std::move(options.nodes)),
      choice_{.requested = options.algorithm,
              .world = transport_->size(),
              .nodes = nodes_.ranks.empty() ? nullptr : &nodes_,
              .shared_memory = transport_->has_shared_memory(),
              .costs = default_costs(transport_->name())},
      watch_world_(std::move(options.watch)),
      executor_(*transport_, recorder_) {
  check<UsageError>(!choice_.nodes || nodes_.node_of.size() == index(size()),
                    "[communicator] a node map of {} ranks in a world of {}", nodes_.node_of.size(),
                    size());
}

// Communicator::all_reduce and the others check their arguments and call this (communicator.cpp).
Work HostCommunicator::enqueue(const CollectiveCall& call, std::string_view name) {
  if (watch_world_) watch_world_();
  check_on_host(call, name);
  const RegionPlace place = regions_.place_of(call.buffer);
  const Algorithm algorithm = chosen_as_before(call, place.region != RegionPlace::none);
  return append(call, name, algorithm, place);
}

// ---- the call at the front ----

void HostCommunicator::begin(Call& call) {
  const CallHeader& header = call.header;
  const bool shared = header.algorithm == Algorithm::two_shot_shared;
  executor_.start({.input = {header.operation, header.algorithm, rank(), size(), header.count,
                             header.root, choice_.nodes},
                   .header = header,
                   .buffer = call.arguments.buffer.raw(),
                   .part = call.arguments.part.raw(),
                   .region = shared ? &regions_.at({.region = header.region}) : nullptr});
}

HostCommunicator::Progress HostCommunicator::carry_on(Call&) {
  const bool moved = executor_.progress();
  return executor_.done() ? Progress::ended : moved ? Progress::some : Progress::none;
}

}  // namespace lockstep::dist
