// What hops and bytes cost on this transport, measured by the very calls that they are to predict.

#include <array>
#include <bit>

#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/collectives/measure.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::dist {
namespace {

constexpr std::int64_t large = std::int64_t{1} << 18;  // elements of f32: 1 MiB
constexpr double least = 1e-13;                        // seconds per byte: noise must not win

double seconds_per_folded_byte(const Communicator& communicator) {
  const Tensor a = Tensor::zeros({large}, DType::f32), b = Tensor::zeros({large}, DType::f32);
  const std::array<const std::byte*, 2> sources{a.raw(), b.raw()};
  std::array<std::byte*, 1> destination{a.raw()};
  return median_seconds(communicator, 7,
                        [&] { kernels::tree_reduce(DType::f32, sources, destination, large); }) /
         static_cast<double>(a.bytes());
}

}  // namespace

void HostCommunicator::tune() {
  if (size() == 1) return;
  TransportCosts costs = choice_.costs;  // the choice stays as it is until all ranks have agreed
  const double share = (size() - 1.0) / size();
  const auto seconds = [&](const Tensor& data) {
    return median_seconds(*this, 7, [&] { all_reduce(data, "tune").wait(); });
  };
  const Algorithm requested = std::exchange(choice_.requested, Algorithm::direct);
  const int rounds = std::bit_width(static_cast<unsigned>(size() - 1));
  costs.hop = median_seconds(*this, 51, [&] { barrier("tune").wait(); }) / rounds;
  costs.fold = std::max(least, seconds_per_folded_byte(*this));

  const Tensor streamed = Tensor::zeros({large}, DType::f32);
  const double bytes = static_cast<double>(streamed.bytes());
  const double crowd = 1 + costs.crowd * (size() - 2);
  const double streaming = (seconds(streamed) - 2 * costs.hop) / (share * bytes) - costs.fold;
  costs.byte = std::max(least, streaming / 2 / crowd);
  if (transport_->has_shared_memory()) {
    const double shared = seconds(allocate(large, DType::f32, {})) - 2 * costs.hop;
    costs.region = std::max(least, shared / (share * bytes));
  }
  choice_.requested = requested;

  const Tensor agreed = Tensor::empty({4}, DType::f64);
  const auto values = agreed.span<double>();
  values[0] = costs.hop, values[1] = costs.byte, values[2] = costs.fold, values[3] = costs.region;
  broadcast(agreed, 0, "tune").wait();
  costs.hop = values[0], costs.byte = values[1], costs.fold = values[2], costs.region = values[3];
  choice_.costs = costs;
}

}  // namespace lockstep::dist
