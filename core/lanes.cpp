#include "lockstep/core/lanes.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/hash.h"

namespace lockstep {

LaneRange lanes_of(Shard shard, int lanes) {
  check<UsageError>(0 <= shard.rank && shard.rank < shard.size, "[lanes] there is no rank {} of {}",
                    shard.rank, shard.size);
  check<UsageError>(lanes > 0 && lanes <= max_lanes && std::has_single_bit(unsigned(lanes)),
                    "[lanes] {} lanes: a power of two up to {} is needed", lanes, max_lanes);
  const int needed = static_cast<int>(std::bit_ceil(unsigned(shard.size)));
  check<UsageError>(lanes >= needed, "[lanes] {} lanes for {} ranks: at least {} are needed", lanes,
                    shard.size, needed);
  LaneRange range{0, lanes};
  // Down the tree, to the node over this rank alone.
  for (int rank = shard.rank, size = shard.size; size > 1;) {
    const int left = static_cast<int>(std::bit_floor(unsigned(size - 1)));
    range.count /= 2;
    if (rank < left) {
      size = left;
    } else {
      rank -= left;
      size -= left;
      range.first += range.count;
    }
  }
  return range;
}

std::int64_t lane_begin(std::int64_t rows, int lanes, int lane) {
  const std::int64_t each = rows / lanes + (rows % lanes != 0);
  return std::min(rows, each * lane);
}

Lanes::Lanes(std::int64_t rows, int lanes, Shard shard) : all_rows_(rows), total_(lanes) {
  const LaneRange own = lanes_of(shard, lanes);
  first_ = own.first;
  first_row_ = lane_begin(rows, lanes, own.first);
  for (int lane = own.first; lane <= own.first + own.count; ++lane)
    offsets_.push_back(lane_begin(rows, lanes, lane) - first_row_);
}

std::int64_t Lanes::rows_of(int lane) const {
  const auto k = static_cast<std::size_t>(lane);
  return offsets_[k + 1] - offsets_[k];
}

bool Lanes::have(const Weight& weight) const {
  return weight.local == static_cast<double>(rows()) &&
         (weight.total == Weight::summed || weight.total == static_cast<double>(all_rows_)) &&
         (weight.lanes == 0 || weight.lanes == total_);
}

std::vector<std::int64_t> Lanes::offsets(std::int64_t size) const {
  const std::int64_t parts = rows() == 0 ? 1 : size / rows();
  std::vector<std::int64_t> result(offsets_);
  for (std::int64_t& offset : result) offset *= parts;
  return result;
}

void LaneScope::set(std::shared_ptr<const Lanes> lanes) {
  // A recorded step adds as its lanes were cut then.
  [[maybe_unused]] static const bool noted = [] {
    StepGraph::depends_on_surroundings([]() -> std::uint64_t {
      const auto& now = current_lanes();
      if (!now) return 0;
      Fnv1a hash;
      for (const std::int64_t number : {now->all_rows(), now->first_row()})
        hash.add(static_cast<std::uint64_t>(number));
      for (const int number : {now->total(), now->first()})
        hash.add(static_cast<std::uint64_t>(number));
      for (const std::int64_t offset : now->offsets()) hash.add(static_cast<std::uint64_t>(offset));
      return hash.value();
    });
    return true;
  }();
  set_.emplace(std::move(lanes));
}

const std::shared_ptr<const Lanes>& current_lanes() {
  static const std::shared_ptr<const Lanes> none;
  return LaneScope::Set::innermost() ? LaneScope::Set::innermost()->lanes : none;
}

}  // namespace lockstep
