// Second reading: memory that the transport reaches without a copy, and which algorithm uses it.

#include <algorithm>

#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::dist {

Storage Regions::add(SharedRegion region, int rank, Device device) {
  std::erase_if(known_, [](const auto& known) { return known.second.used.expired(); });
  // Of this rank alone: among threads the memory itself also has the other ranks' tensors.
  const auto keeper = std::make_shared<std::shared_ptr<void>>(std::move(region.keeper));
  std::byte* const own = region.base[index(rank)];
  const std::size_t bytes = region.bytes;
  known_.emplace(next_++, Known{std::move(region), own, keeper});
  return Storage::adopt(
      own, bytes, [keeper] {}, device);
}

RegionPlace Regions::place_of(const Tensor& buffer) const {
  const std::byte* const data = buffer.raw();
  if (data == nullptr) return {};
  for (const auto& [number, known] : known_)
    if (data >= known.own && data + buffer.bytes() <= known.own + known.region.bytes &&
        !known.used.expired())  // else these are addresses that have been used again
      return {number, static_cast<std::uint64_t>(data - known.own)};
  return {};
}

Algorithm HostCommunicator::chosen(Operation operation, std::size_t bytes, DType dtype,
                                   bool in_region) const {
  Choice choice = choice_;
  if (adds_16_bit(operation, dtype)) choice.requested = Algorithm::two_shot;
  return choose(choice, operation, bytes, in_region);
}

Algorithm HostCommunicator::chosen_as_before(const CollectiveCall& call, bool in_region) {
  const Chosen now{call.operation, call.buffer.bytes(), call.buffer.dtype(), in_region,
                   choice_.requested};
  if (now != last_choice_) {
    last_chosen_ = chosen(now.operation, now.bytes, now.dtype, now.in_region);
    last_choice_ = now;
  }
  return last_chosen_;
}

Tensor HostCommunicator::allocate(std::int64_t numel, DType dtype, Device) {
  if (failure_) std::rethrow_exception(failure_);
  if (!transport_->has_shared_memory()) return Tensor::zeros({numel}, dtype);
  if (next_ > front_) wait(next_ - 1, {});  // others may need this rank's part in what is under way
  const std::size_t bytes =
      static_cast<std::size_t>(std::max<std::int64_t>(1, numel)) * size_of(dtype);
  try {
    return Tensor::over(regions_.add(transport_->allocate(bytes), rank()), 0, {numel}, dtype);
  } catch (const CommError& error) {
    give_up(error, "allocate", fmt::format("{} {}", numel, dtype));
  }
}

}  // namespace lockstep::dist
