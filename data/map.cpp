#include "lockstep/data/map.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "lockstep/core/hash.h"
#include "lockstep/core/philox.h"

namespace lockstep::data {

Random::result_type Random::operator()() {
  if (drawn_ % 4 == 0) {
    const auto sample = static_cast<std::uint64_t>(sample_);
    const PhiloxBlock made = philox4x32_10(
        {{drawn_ / 4, static_cast<std::uint32_t>(epoch_), static_cast<std::uint32_t>(sample),
          static_cast<std::uint32_t>(sample >> 32)}},
        seed_);
    std::ranges::copy(made.words, block_);
  }
  return block_[drawn_++ % 4];
}

std::uint64_t Random::next64() {
  const std::uint64_t high = (*this)();
  return high << 32 | (*this)();
}

double Random::uniform(double from, double to) {
  return from + (to - from) * (static_cast<double>(next64() >> 11) * 0x1p-53);
}

double Random::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

std::int64_t Random::below(std::int64_t n) {
  check<UsageError>(n >= 1, "[Random] below {}; at least 1 is needed", n);
  return static_cast<std::int64_t>(next64() % static_cast<std::uint64_t>(n));
}

Map::Map(AnyDataset dataset, Function function, std::uint64_t seed)
    : dataset_(dataset), function_(std::move(function)), seed_(seed) {
  check<UsageError>(function_ != nullptr, "[Map] there is no function");
}

Fields Map::sample(std::int64_t index) const { return detail::row_of(rows({&index, 1}, 0), 0); }

Fields Map::rows(std::span<const std::int64_t> samples, int epoch) const {
  const Fields theirs = dataset_->rows(samples, epoch);
  return detail::stack(samples, [&](std::size_t row) {
    Random random(seed_, epoch, samples[row]);
    return function_(detail::row_of(theirs, static_cast<std::int64_t>(row)), random);
  });
}

std::uint64_t Map::digest() const {
  return Fnv1a().add(dataset_->digest()).add(seed_).add(Dataset::digest()).value();
}

}  // namespace lockstep::data
