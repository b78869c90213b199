// Second reading: memory that the transport reaches without a copy, and which algorithm uses it.

#include <algorithm>

#include "lockstep/dist/collectives/host_communicator.h"

namespace lockstep::dist {

RegionPlace place_in(const std::vector<SharedRegion>& regions, int rank, const Tensor& buffer) {
  const std::byte* const data = buffer.raw();
  for (std::size_t k = 0; data != nullptr && k < regions.size(); ++k) {
    const std::byte* const base = regions[k].base[index(rank)];
    if (data >= base && data + buffer.bytes() <= base + regions[k].bytes)
      return {static_cast<std::int32_t>(k), static_cast<std::uint64_t>(data - base)};
  }
  return {};
}

Algorithm HostCommunicator::chosen(Operation operation, std::size_t bytes, DType dtype,
                                   bool in_region) const {
  Choice choice = choice_;
  if (adds_16_bit(operation, dtype)) choice.requested = Algorithm::two_shot;
  return choose(choice, operation, bytes, in_region);
}

Tensor HostCommunicator::allocate(std::int64_t numel, DType dtype, Device) {
  if (failure_) std::rethrow_exception(failure_);
  if (!transport_->has_shared_memory()) return Tensor::zeros({numel}, dtype);
  if (next_ > front_) wait(next_ - 1, {});  // others may need this rank's part in what is under way
  const std::size_t bytes =
      static_cast<std::size_t>(std::max<std::int64_t>(1, numel)) * size_of(dtype);
  try {
    regions_.push_back(transport_->allocate(bytes));
  } catch (const CommError& error) {
    give_up(error, "allocate", fmt::format("{} {}", numel, dtype));
  }
  const SharedRegion& region = regions_.back();
  return Tensor::over(
      Storage::adopt(region.base[index(rank())], bytes, [keeper = region.keeper] {}), 0, {numel},
      dtype);
}

}  // namespace lockstep::dist
