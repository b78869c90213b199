#include "lockstep/dist/collectives/host_communicator.h"

#include <algorithm>

#include "lockstep/core/gpu/gpu.h"

namespace lockstep::dist {
namespace {

Choice choice_for(Choice choice, Operation operation, DType dtype) {
  if (adds_16_bit(operation, dtype)) choice.requested = Algorithm::two_shot;
  return choice;
}

}  // namespace

HostCommunicator::HostCommunicator(std::unique_ptr<Transport> transport,
                                   CommunicatorOptions options)
    : QueuedCommunicator(transport->size(), options.timeout),
      transport_(std::move(transport)),
      nodes_(std::move(options.nodes)),
      choice_{.requested = options.algorithm,
              .world = transport_->size(),
              .nodes = nodes_.ranks.empty() ? nullptr : &nodes_,
              .shared_memory = transport_->has_shared_memory(),
              .costs = default_costs(transport_->name())},
      executor_(*transport_, recorder_) {
  check<UsageError>(!choice_.nodes || nodes_.node_of.size() == index(size()),
                    "[communicator] a node map of {} ranks in a world of {}", nodes_.node_of.size(),
                    size());
}

Work HostCommunicator::enqueue(const CollectiveCall& call, std::string_view name) {
  check_on_host(call, name);
  const RegionPlace place = place_in(regions_, rank(), call.buffer);
  const Choice choice = choice_for(choice_, call.operation, call.buffer.dtype());
  const Algorithm algorithm =
      choose(choice, call.operation, call.buffer.bytes(), place.region != RegionPlace::none);
  return append(call, name, algorithm, place);
}

std::string_view HostCommunicator::algorithm(std::size_t bytes, DType dtype) const {
  return name_of(choose(choice_for(choice_, Operation::all_reduce, dtype), Operation::all_reduce,
                        bytes, transport_->has_shared_memory()));
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
                   .region = shared ? &regions_[index(header.region)] : nullptr});
}

HostCommunicator::Progress HostCommunicator::carry_on(Call&) {
  const bool moved = executor_.progress();
  if (executor_.done()) return Progress::ended;
  return moved ? Progress::some : Progress::none;
}

void HostCommunicator::relax(unsigned round, bool) {
  gpu::nudge();
  transport_->relax(round);
}

std::string HostCommunicator::awaited() const {
  const int peer = executor_.awaited();
  return fmt::format("waiting for rank {} ({}); {}", peer, executor_.position(),
                     recorder_.last_seen(peer));
}

// ---- shared regions ----

RegionPlace place_in(const std::vector<SharedRegion>& regions, int rank, const Tensor& buffer) {
  const std::byte* const data = buffer.raw();
  for (std::size_t k = 0; data != nullptr && k < regions.size(); ++k) {
    const std::byte* const base = regions[k].base[index(rank)];
    if (data >= base && data + buffer.bytes() <= base + regions[k].bytes)
      return {static_cast<std::int32_t>(k), static_cast<std::uint64_t>(data - base)};
  }
  return {};
}

Tensor HostCommunicator::allocate(std::int64_t numel, DType dtype, Device) {
  if (failure_) std::rethrow_exception(failure_);
  if (!transport_->has_shared_memory()) return Tensor::zeros({numel}, dtype);
  if (next_ > front_) wait(next_ - 1, {});  // others may need this rank's part in what is under way
  const std::size_t bytes =
      static_cast<std::size_t>(std::max<std::int64_t>(1, numel)) * size_of(dtype);
  try {
    regions_.push_back(transport_->allocate(bytes));
  } catch (const PeerError& error) {
    give_up(true, "allocate", fmt::format("{} {}", numel, dtype), error.what());
  } catch (const CommError& error) {
    give_up(false, "allocate", fmt::format("{} {}", numel, dtype), error.what());
  }
  const SharedRegion& region = regions_.back();
  return Tensor::over(
      Storage::adopt(region.base[index(rank())], bytes, [keeper = region.keeper] {}), 0, {numel},
      dtype);
}

}  // namespace lockstep::dist
