#include "lockstep/data/sampler.h"

#include <algorithm>
#include <numeric>

#include "lockstep/core/generator.h"

namespace lockstep::data {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

}  // namespace

Tensor epoch_permutation(std::int64_t n, bool shuffle, std::uint64_t seed, int epoch) {
  check<UsageError>(epoch >= 0, "[sampler] epoch {}; epochs count from 0", epoch);
  if (shuffle) return Generator(seed + static_cast<std::uint64_t>(epoch)).randperm(n);
  Tensor identity = Tensor::empty({n}, DType::i64);
  const auto span = identity.span<std::int64_t>();
  std::iota(span.begin(), span.end(), std::int64_t{0});
  return identity;
}

EpochPlan::EpochPlan(std::int64_t n, SamplerOptions options, Shard shard) : n_(n), shard_(shard) {
  check<UsageError>(n >= 0, "[sampler] the number of samples must be 0 or more, got {}", n);
  check<UsageError>(options.batch >= 1, "[sampler] batch size {}; at least 1 is needed",
                    options.batch);
  check<UsageError>(0 <= shard.rank && shard.rank < shard.size,
                    "[sampler] there is no rank {} of {}", shard.rank, shard.size);
  check<UsageError>(options.padded || !options.drop_last,
                    "[sampler] drop_last needs padded: the exact partition drops no sample");
  dealt_ = !options.padded     ? n
           : options.drop_last ? n / shard.size * shard.size
                               : ceil_div(n, shard.size) * shard.size;
  // A batch beyond a rank's whole share is that share; so products with it stay in range.
  batch_ = std::clamp(ceil_div(dealt_, shard.size), std::int64_t{1}, options.batch);
}

std::int64_t EpochPlan::steps() const { return ceil_div(ceil_div(dealt_, shard_.size), batch_); }

std::int64_t EpochPlan::rows(std::int64_t step) const {
  // Rank r holds ceil((dealt - r) / W) positions: all p < dealt with p mod W = r.
  const std::int64_t held = shard_.rank < dealt_ ? ceil_div(dealt_ - shard_.rank, shard_.size) : 0;
  return std::clamp(held - step * batch_, std::int64_t{0}, batch_);
}

Weight EpochPlan::weight(std::int64_t step) const {
  const std::int64_t whole = batch_ * shard_.size;
  return {static_cast<double>(rows(step)),
          static_cast<double>(std::min(whole, dealt_ - step * whole))};
}

std::int64_t EpochPlan::position(std::int64_t step, std::int64_t row) const {
  return ((step * batch_ + row) * shard_.size + shard_.rank) % n_;
}

}  // namespace lockstep::data
