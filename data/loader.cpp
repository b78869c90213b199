#include "lockstep/data/loader.h"

#include <limits>
#include <span>
#include <string>
#include <utility>

#include "lockstep/core/hash.h"
#include "lockstep/core/trace/recorder.h"

namespace lockstep::data {
namespace {

/// The same on ranks that take the same epoch apart.
std::uint64_t digest_of(const Dataset& dataset, const LoaderOptions& options, Shard shard,
                        int epoch) {
  Fnv1a digest;
  digest.add(static_cast<std::uint64_t>(dataset.size())).add(dataset.digest());
  digest.add(static_cast<std::uint64_t>(options.batch)).add(static_cast<std::uint64_t>(shard.size));
  digest.add(static_cast<std::uint64_t>(options.total_batch));
  digest.add(static_cast<std::uint64_t>(options.begin));
  digest.add(static_cast<std::uint64_t>(options.lanes));
  digest.add(options.shuffle ? options.seed + static_cast<std::uint64_t>(epoch) : 0);
  for (const bool flag : {options.shuffle, options.padded, options.drop_last})
    digest.add(std::uint64_t{flag});
  return digest.value() | 1;  // not 0
}

// A data set that a program defines may give anything.
void check_rows(const Fields& fields, std::size_t samples) {
  for (const auto& [name, value] : fields) {
    check<DataError>(value.defined(), "[Loader] rows() gave an undefined tensor for field '{}'",
                     name);
    check<DataError>(value.rank() > 0 && static_cast<std::size_t>(value.size(0)) == samples,
                     "[Loader] rows() gave the shape {} for field '{}' of {} samples",
                     value.shape(), name, samples);
  }
}

}  // namespace

Loader::Loader(AnyDataset dataset, const LoaderOptions& options, Shard shard, int epoch)
    : dataset_(dataset),
      epoch_(epoch),
      options_(options),
      plan_(dataset_->size(), options, shard),
      order_(epoch_permutation(dataset_->size(), options.shuffle, options.seed, epoch)),
      origin_{.deal_digest = digest_of(*dataset_, options, shard, epoch)} {
  if (constexpr std::int64_t first = 0; dataset_->size() > 0) {
    const Fields rows = dataset_->rows({&first, 1}, epoch);
    check_rows(rows, 1);
    first_ = detail::row_of(rows, 0);
  }
  if (shard.size > std::numeric_limits<std::uint16_t>::max()) return;
  origin_.part = static_cast<std::uint16_t>(shard.rank);
  origin_.parts = static_cast<std::uint16_t>(shard.size);
}

Batch Loader::batch(std::int64_t step) const {
  check<UsageError>(step >= 0 && step < steps(), "[Loader] batch {} of {}", step, steps());
  Batch result = gather(plan_, step);
  result.weight.origin = origin_;
  result.weight.origin.step = static_cast<std::int32_t>(step & 0x7fffffff);  // not -1
  return result;
}

// As a rank gets it that owns nothing else.
Batch Loader::lane(std::int64_t step, int lane) const {
  check<UsageError>(step >= 0 && step < steps(), "[Loader] batch {} of {}", step, steps());
  check<UsageError>(lane >= 0 && lane < options_.lanes, "[Loader] lane {} of {}", lane,
                    options_.lanes);
  return gather(EpochPlan(dataset_->size(), options_, {lane, options_.lanes}), step);
}

Batch Loader::gather(const EpochPlan& plan, std::int64_t step) const {
  const trace::Slice slice(trace::Kind::load, "load", {plan.rows(step), plan.end(step)});
  const Tensor numbers = Tensor::empty({plan.rows(step)}, DType::i64);
  const auto samples = numbers.span<std::int64_t>();
  const auto order = order_.span<std::int64_t>();
  for (std::size_t row = 0; row < samples.size(); ++row)
    samples[row] =
        order[static_cast<std::size_t>(plan.position(step, static_cast<std::int64_t>(row)))];

  Batch result;
  result.step = step;
  result.lanes = plan.lanes(step);
  result.position = plan.end(step);
  result.weight = plan.weight(step);
  if (samples.empty()) {
    for (const auto& [name, value] : first_) result.fields.set(name, detail::empty_rows(0, value));
  } else {
    result.fields = dataset_->rows(samples, epoch_);
    check_rows(result.fields, samples.size());
    detail::check_like(detail::row_of(result.fields, 0), samples[0], first_, 0);
  }
  for (const auto& [name, value] : result.fields) {
    const Tensor there = value.to(options_.device);
    result.fields.set(name, result.lanes ? of_samples(there) : there);
  }
  if (const Tensor* x = result.fields.find("x")) result.x = *x;
  if (const Tensor* y = result.fields.find("y")) result.y = *y;
  return result;
}

}  // namespace lockstep::data
