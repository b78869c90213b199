#include "lockstep/dist/observe/clocks.h"

#include <algorithm>
#include <cmath>

#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::dist {

std::vector<ClockOffset> clock_offsets(const std::vector<std::vector<std::int64_t>>& came,
                                       const std::vector<std::vector<std::int64_t>>& left) {
  std::vector<ClockOffset> offsets(came[0].size());
  for (std::size_t r = 1; r < offsets.size(); ++r) {
    std::int64_t least = came[0][r] - left[0][0], most = left[0][r] - came[0][0];
    for (std::size_t k = 1; k < came.size(); ++k) {
      least = std::max(least, came[k][r] - left[k][0]);
      most = std::min(most, left[k][r] - came[k][0]);
    }
    if (least <= 0 && most >= 0)
      offsets[r] = {0, std::max(-least, most)};
    else
      offsets[r] = {least + (most - least) / 2, (most - least + 1) / 2};
  }
  return offsets;
}

namespace {

std::vector<std::int64_t> gather_number(Communicator& communicator, std::int64_t number) {
  const Tensor mine = Tensor::empty({1}, DType::i64);
  *mine.data<std::int64_t>() = number;
  const Tensor all = Tensor::empty({communicator.size()}, DType::i64);
  communicator.all_gather(mine, all, "clocks").wait();
  const auto numbers = all.span<std::int64_t>();
  return {numbers.begin(), numbers.end()};
}

}  // namespace

std::vector<ClockOffset> measure_clocks(Communicator& communicator) {
  constexpr int rounds = 8;
  const auto now = [&] { return std::llround(communicator.now().count() * 1e9); };
  std::vector<std::vector<std::int64_t>> came, left;
  for (int k = 0; k < rounds; ++k) {
    came.push_back(gather_number(communicator, now()));
    left.push_back(gather_number(communicator, now()));
  }
  return clock_offsets(came, left);
}

}  // namespace lockstep::dist
