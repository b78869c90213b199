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

EpochPlan::EpochPlan(std::int64_t n, LoaderOptions options, Shard shard)
    : n_(n), begin_(options.begin), lanes_(options.lanes), shard_(shard) {
  check<UsageError>(n >= 0, "[sampler] the number of samples must be 0 or more, got {}", n);
  check<UsageError>(options.batch >= 1, "[sampler] batch size {}; at least 1 is needed",
                    options.batch);
  check<UsageError>(options.total_batch >= 0, "[sampler] total batch size {}; 0 or more is needed",
                    options.total_batch);
  check<UsageError>(0 <= shard.rank && shard.rank < shard.size,
                    "[sampler] there is no rank {} of {}", shard.rank, shard.size);
  check<UsageError>(options.padded || !options.drop_last,
                    "[sampler] drop_last needs padded: the exact partition drops no sample");
  check<UsageError>(0 <= begin_ && (begin_ <= n || options.padded),
                    "[sampler] begin {} of {} samples", begin_, n);
  if (lanes_ != 0) {
    own_ = lanes_of(shard, lanes_);
    check<UsageError>(!options.padded, "[sampler] lanes take every sample once: padded cannot be");
    if (options.total_batch == 0) options.total_batch = options.batch;
  }
  dealt_ = !options.padded     ? n
           : options.drop_last ? n / shard.size * shard.size
                               : ceil_div(n, shard.size) * shard.size;
  dealt_ = std::max(dealt_, begin_);
  // A batch beyond all there is, is that; so products with it stay in range.
  const std::int64_t all = std::max(dealt_, std::int64_t{1});
  const std::int64_t share = ceil_div(all, shard.size);
  whole_ = options.total_batch > 0 ? std::min(options.total_batch, all)
                                   : std::min(options.batch, share) * shard.size;
}

std::int64_t EpochPlan::steps() const { return ceil_div(dealt_ - begin_, whole_); }

/// The first position of a step, of all ranks.
std::int64_t EpochPlan::begin(std::int64_t step) const {
  return std::min(begin_ + step * whole_, dealt_);
}

std::int64_t EpochPlan::end(std::int64_t step) const { return begin(step + 1); }

/// How many of a step's first `count` positions this rank holds: all p with p mod W = r.
std::int64_t EpochPlan::held(std::int64_t count) const {
  return count > shard_.rank ? ceil_div(count - shard_.rank, shard_.size) : 0;
}

std::shared_ptr<const Lanes> EpochPlan::lanes(std::int64_t step) const {
  if (lanes_ == 0) return nullptr;
  return std::make_shared<const Lanes>(begin(step + 1) - begin(step), lanes_, shard_);
}

/// Where a lane begins, in the rows of a step.
std::int64_t EpochPlan::lane_row(std::int64_t step, int lane) const {
  return lane_begin(begin(step + 1) - begin(step), lanes_, lane);
}

std::int64_t EpochPlan::rows(std::int64_t step) const {
  if (lanes_ != 0) return lane_row(step, own_.first + own_.count) - lane_row(step, own_.first);
  return held(end(step) - begin(step));
}

Weight EpochPlan::weight(std::int64_t step) const {
  Weight result(rows(step), begin(step + 1) - begin(step));
  result.lanes = lanes_;
  return result;
}

std::int64_t EpochPlan::position(std::int64_t step, std::int64_t row) const {
  if (lanes_ != 0) return begin(step) + lane_row(step, own_.first) + row;
  return (begin(step) + row * shard_.size + shard_.rank) % n_;
}

}  // namespace lockstep::data
