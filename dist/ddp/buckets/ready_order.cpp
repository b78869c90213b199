#include "lockstep/dist/ddp/buckets/ready_order.h"

#include <algorithm>

#include "lockstep/dist/ddp/buckets/bucket_layout.h"

namespace lockstep::dist {

std::vector<int> ReadyOrder::agree(Communicator& communicator, int source) {
  done_ = true;
  const std::vector<int> mine = complete_order(ready_, parameters_);
  const Tensor seen = Tensor::empty({static_cast<std::int64_t>(parameters_)}, DType::i32);
  std::ranges::copy(mine, seen.data<std::int32_t>());
  communicator.broadcast(seen, source, "ready order").wait();
  const auto agreed = seen.span<std::int32_t>();
  return {agreed.begin(), agreed.end()};
}

}  // namespace lockstep::dist
