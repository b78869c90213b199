#include "lockstep/dist/collectives/host_communicator.h"

#include <algorithm>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/collectives/call_checks.h"

namespace lockstep::dist {
namespace {

// What passes sums on would round 16-bit elements at every hop.
Choice choice_for(Choice choice, Operation operation, DType dtype) {
  const bool sums = operation == Operation::all_reduce || operation == Operation::reduce_scatter;
  if (sums && size_of(dtype) == 2) choice.requested = Algorithm::direct;
  return choice;
}

}  // namespace

HostCommunicator::HostCommunicator(std::unique_ptr<Transport> transport,
                                   CommunicatorOptions options)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      choice_{.requested = options_.algorithm,
              .world = transport_->size(),
              .nodes = options_.nodes.ranks.empty() ? nullptr : &options_.nodes,
              .shared_memory = transport_->has_shared_memory(),
              .costs = default_costs(transport_->name())},
      recorder_(transport_->size()),
      executor_(*transport_, recorder_),
      queue_(queue_length) {
  check<UsageError>(!choice_.nodes || choice_.nodes->node_of.size() == index(size()),
                    "[communicator] a node map of {} ranks in a world of {}",
                    options_.nodes.node_of.size(), size());
}

// ---- calls ----

Work HostCommunicator::all_reduce(const Tensor& data, std::string_view name) {
  check_all_reduce(data, name);
  return enqueue(Operation::all_reduce, data, {}, 0, name);
}

Work HostCommunicator::reduce_scatter(const Tensor& input, const Tensor& output,
                                      std::string_view name) {
  check_reduce_scatter(input, output, rank(), size(), name);
  return enqueue(Operation::reduce_scatter, input, output, 0, name);
}

Work HostCommunicator::all_gather(const Tensor& input, const Tensor& output,
                                  std::string_view name) {
  check_all_gather(input, output, rank(), size(), name);
  return enqueue(Operation::all_gather, output, input, 0, name);
}

Work HostCommunicator::broadcast(const Tensor& data, int root, std::string_view name) {
  check_broadcast(root, size(), name);
  return enqueue(Operation::broadcast, data, {}, root, name);
}

Work HostCommunicator::barrier(std::string_view name) {
  return enqueue(Operation::barrier, {}, {}, 0, name);
}

Work HostCommunicator::enqueue(Operation operation, const Tensor& buffer, const Tensor& part,
                               int root, std::string_view name) {
  for (const Tensor* tensor : {&buffer, &part}) check_on_host(operation, *tensor, name);
  if (failure_) return Work(this, next_);
  Call& call = prepare(operation, buffer, root, name);
  call.part = part;
  call.collective.part = part.raw();
  place_in_region(call);
  call.collective.header.algorithm =
      choose(choice_for(choice_, operation, buffer.dtype()), operation, buffer.bytes(),
             call.collective.region != nullptr);
  return start(call);
}

Work HostCommunicator::validate_call(Operation operation, const Tensor& data, int root,
                                     std::string_view name, RegionPlace place) {
  if (failure_) return Work(this, next_);
  Call& call = prepare(operation, data, root, name);
  call.collective.header.algorithm = Algorithm::device;
  call.collective.header.region = place.region;
  call.collective.header.offset = place.offset;
  return start(call);
}

HostCommunicator::Call& HostCommunicator::prepare(Operation operation, const Tensor& data, int root,
                                                  std::string_view name) {
  if (next_ - front_ == queue_length) wait(front_, {});
  Call& call = this->call(next_);
  call.collective = Collective{};
  call.buffer = data;
  const std::size_t length = std::min(name.size(), call.name.size() - 1);
  std::copy_n(name.begin(), length, call.name.begin());
  call.name[length] = 0;
  CallHeader& header = call.collective.header;
  header.operation = operation;
  header.dtype = data.dtype();
  header.root = root;
  header.sequence = next_;
  header.count = data.numel();
  header.set_name(name);
  call.collective.buffer = data.raw();
  return call;
}

Work HostCommunicator::start(Call& call) {
  const CallHeader& header = call.collective.header;
  recorder_.called(header, now());
  call.collective.plan = {header.operation, header.algorithm, rank(),       size(),
                          header.count,     header.root,      choice_.nodes};
  const Work work(this, next_++);
  try {
    advance();
  } catch (const CommError&) {
    // Kept in failure_: the Work throws it.
  }
  return work;
}

void HostCommunicator::place_in_region(Call& call) const {
  const auto me = static_cast<std::size_t>(rank());
  const std::byte* const data = call.buffer.raw();
  for (std::size_t k = 0; data != nullptr && k < regions_.size(); ++k) {
    const SharedRegion& region = regions_[k];
    if (data < region.base[me] || data + call.buffer.bytes() > region.base[me] + region.bytes)
      continue;
    call.collective.region = &region;
    call.collective.header.region = static_cast<std::int32_t>(k);
    call.collective.header.offset = static_cast<std::uint64_t>(data - region.base[me]);
    return;
  }
}

Tensor HostCommunicator::allocate(std::int64_t numel, DType dtype, Device) {
  if (failure_) std::rethrow_exception(failure_);
  if (!transport_->has_shared_memory()) return Tensor::zeros({numel}, dtype);
  if (next_ > front_) wait(next_ - 1, {});  // others may need this rank's part in what is under way
  const Shape shape{numel};
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
  return Tensor::over(Storage::adopt(region.base[static_cast<std::size_t>(rank())], bytes,
                                     [keeper = region.keeper] {}),
                      0, shape, dtype);
}

void HostCommunicator::abort(std::string_view reason) noexcept {
  if (failure_) return;
  try {
    failure_ = std::make_exception_ptr(CommError(std::string(reason)));
  } catch (const std::bad_alloc&) {
    failure_ = std::current_exception();
  }
  transport_->abort(reason);
  if (linked_) linked_->abort(reason);
}

std::string_view HostCommunicator::algorithm(std::size_t bytes, DType dtype) const {
  return name_of(choose(choice_for(choice_, Operation::all_reduce, dtype), Operation::all_reduce,
                        bytes, transport_->has_shared_memory()));
}

// ---- carrying them out ----

bool HostCommunicator::advance(bool timed) {
  if (failure_) std::rethrow_exception(failure_);
  bool moved = false;
  try {
    while (front_ < next_) {
      Call& call = this->call(front_);
      if (!started_) {
        executor_.start(call.collective);
        started_ = true;
      }
      moved |= executor_.progress();
      if (!executor_.done()) break;
      call.buffer = call.part = Tensor();
      started_ = false;
      if (timed) finished_ = now();
      recorder_.finished(front_, timed ? std::optional(finished_) : std::nullopt);
      ++front_;
      moved = true;
    }
  } catch (const PeerError& error) {
    give_up(true, error.what());
  } catch (const CommError& error) {
    give_up(false, error.what());
  }
  return moved;
}

bool HostCommunicator::progress(std::uint64_t sequence) {
  if (sequence >= front_) advance();
  return sequence < front_;
}

void HostCommunicator::wait(std::uint64_t sequence, std::optional<Seconds> timeout) {
  if (sequence < front_) return;
  const Seconds limit = timeout.value_or(options_.timeout);
  unsigned round = 0;
  Seconds start{}, idle_since{};
  bool waits = false, idle = false;
  while (sequence >= front_) {
    if (advance(waits)) {
      round = 0;
      idle = false;
      continue;
    }
    // Looking at the clock takes longer than looking at the streams: a wait of a microsecond or so
    // does without.
    constexpr unsigned untimed = 16;
    if (round < untimed && transport_->spins(round)) {
      relax(round++);
      continue;
    }
    const Seconds now = transport_->now();
    if (!idle) idle_since = now;
    if (!waits) start = now;
    waits = idle = true;
    if (now - idle_since > limit) {
      const int peer = executor_.awaited();
      give_up(false,
              fmt::format("timed out after {:g} s, waiting for rank {} ({}); {}", limit.count(),
                          peer, executor_.position(), recorder_.last_seen(peer)));
    }
    relax(round++);
  }
  if (waits) waited_ += finished_ - start;
}

void HostCommunicator::relax(unsigned round) {
  gpu::nudge();
  try {
    transport_->relax(round);
  } catch (const PeerError& error) {
    give_up(true, error.what());
  }
}

std::exception_ptr HostCommunicator::failure(std::uint64_t sequence) const {
  return sequence < front_ ? nullptr : failure_;
}

void HostCommunicator::give_up(bool echo, std::string_view why) {
  const Call& call = this->call(front_);
  give_up(echo, name_of(call.collective.plan.operation),
          fmt::format("#{} '{}'", call.collective.header.sequence, call.name.data()), why);
}

void HostCommunicator::give_up(bool echo, std::string_view operation, std::string_view call,
                               std::string_view why) {
  const std::string message = fmt::format("[{}] rank {}, {}: {}", operation, rank(), call, why);
  failure_ = echo ? std::make_exception_ptr(PeerError(message))
                  : std::make_exception_ptr(CommError(message));
  const std::string reason =
      fmt::format("rank {} gave up in {} {}: {}", rank(), operation, call, why);
  transport_->abort(reason);
  if (linked_) linked_->abort(reason);
  std::rethrow_exception(failure_);
}

}  // namespace lockstep::dist
