#include "lockstep/data/loader.h"

#include <cstring>
#include <limits>

#include "lockstep/core/hash.h"

namespace lockstep::data {
namespace {

/// The same on ranks that take the same epoch apart.
std::uint64_t digest_of(const Dataset& dataset, const LoaderOptions& options, Shard shard,
                        int epoch) {
  std::uint64_t labels = 0, place = 0;
  for (const std::int64_t label : dataset.labels.span<std::int64_t>()) {
    const std::uint64_t keyed = static_cast<std::uint64_t>(label) + ++place * 0x9e3779b97f4a7c15u;
    labels += keyed * (keyed | 1);
  }
  Fnv1a digest;
  digest.add(static_cast<std::uint64_t>(dataset.size())).add(labels);
  digest.add(static_cast<std::uint64_t>(options.batch)).add(static_cast<std::uint64_t>(shard.size));
  digest.add(options.shuffle ? options.seed + static_cast<std::uint64_t>(epoch) : 0);
  for (const bool flag : {options.shuffle, options.padded, options.drop_last})
    digest.add(std::uint64_t{flag});
  return digest.value() | 1;  // not 0
}

}  // namespace

Loader::Loader(const Dataset& dataset, const LoaderOptions& options, Shard shard, int epoch)
    : dataset_(dataset),
      plan_(dataset.size(), {options.batch, options.padded, options.drop_last}, shard),
      order_(epoch_permutation(dataset.size(), options.shuffle, options.seed, epoch)),
      device_(options.device),
      origin_{.plan = digest_of(dataset, options, shard, epoch)} {
  if (shard.size > std::numeric_limits<std::uint16_t>::max()) return;
  origin_.part = static_cast<std::uint16_t>(shard.rank);
  origin_.parts = static_cast<std::uint16_t>(shard.size);
}

Batch Loader::batch(std::int64_t step) const {
  const std::int64_t rows = plan_.rows(step);
  const std::int64_t pixels = dataset_.images.size(1);
  Batch result{Tensor::empty({rows, pixels}), Tensor::empty({rows}, DType::i64),
               plan_.weight(step)};
  result.weight.origin = origin_;
  result.weight.origin.step = static_cast<std::int32_t>(step & 0x7fffffff);  // not -1
  const std::int64_t* order = order_.data<std::int64_t>();
  const float* images = dataset_.images.data<float>();
  const std::int64_t* labels = dataset_.labels.data<std::int64_t>();
  float* x = result.x.data<float>();
  std::int64_t* y = result.y.data<std::int64_t>();
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t sample = order[plan_.position(step, row)];
    std::memcpy(x + row * pixels, images + sample * pixels,
                static_cast<std::size_t>(pixels) * sizeof(float));
    y[row] = labels[sample];
  }
  result.x = result.x.to(device_);
  result.y = result.y.to(device_);
  return result;
}

}  // namespace lockstep::data
