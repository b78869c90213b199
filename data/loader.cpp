#include "lockstep/data/loader.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/core/hash.h"

namespace lockstep::data {
namespace {

const Dataset& checked(const Dataset& dataset) {
  const auto is = [](const Tensor& tensor, DType dtype, int rank) {
    return tensor.defined() && tensor.dtype() == dtype && tensor.rank() == rank;
  };
  check<DataError>(is(dataset.images, DType::f32, 2) && is(dataset.labels, DType::i64, 1),
                   "[Loader] a dataset has images f32 (n, pixels) and labels i64 (n,)");
  check<DataError>(dataset.images.size(0) == dataset.labels.numel(),
                   "[Loader] the dataset has {} images and {} labels", dataset.images.size(0),
                   dataset.labels.numel());
  return dataset;
}

/// Of all labels, and of some images: another version of a data set would change all of them.
std::uint64_t digest_of(const Dataset& dataset) {
  constexpr std::int64_t some = 16;
  Fnv1a digest;
  digest.add({reinterpret_cast<const char*>(dataset.labels.raw()), dataset.labels.bytes()});
  const auto row = static_cast<std::size_t>(dataset.images.size(1)) * sizeof(float);
  const auto* images = reinterpret_cast<const char*>(dataset.images.raw());
  for (std::int64_t k = 0; k < std::min(some, dataset.size()); ++k)
    digest.add({images + static_cast<std::size_t>(k * dataset.size() / some) * row, row});
  return digest.value();
}

/// The same on ranks that take the same epoch apart.
std::uint64_t digest_of(const Dataset& dataset, const LoaderOptions& options, Shard shard,
                        int epoch) {
  Fnv1a digest;
  digest.add(static_cast<std::uint64_t>(dataset.size())).add(digest_of(dataset));
  digest.add(static_cast<std::uint64_t>(options.batch)).add(static_cast<std::uint64_t>(shard.size));
  digest.add(options.shuffle ? options.seed + static_cast<std::uint64_t>(epoch) : 0);
  for (const bool flag : {options.shuffle, options.padded, options.drop_last})
    digest.add(std::uint64_t{flag});
  return digest.value() | 1;  // not 0
}

}  // namespace

Loader::Loader(const Dataset& dataset, const LoaderOptions& options, Shard shard, int epoch)
    : dataset_(checked(dataset)),
      plan_(dataset.size(), {options.batch, options.padded, options.drop_last}, shard),
      order_(epoch_permutation(dataset.size(), options.shuffle, options.seed, epoch)),
      device_(options.device),
      origin_{.plan = digest_of(dataset, options, shard, epoch)} {
  if (shard.size > std::numeric_limits<std::uint16_t>::max()) return;
  origin_.part = static_cast<std::uint16_t>(shard.rank);
  origin_.parts = static_cast<std::uint16_t>(shard.size);
}

Batch Loader::batch(std::int64_t step) const {
  check<UsageError>(step >= 0 && step < steps(), "[Loader] batch {} of {}", step, steps());
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
