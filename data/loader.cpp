#include "lockstep/data/loader.h"

#include <cstring>

namespace lockstep::data {

Loader::Loader(const Dataset& dataset, const LoaderOptions& options, Shard shard, int epoch)
    : dataset_(dataset),
      plan_(dataset.size(), {options.batch, options.padded, options.drop_last}, shard),
      order_(epoch_permutation(dataset.size(), options.shuffle, options.seed, epoch)),
      device_(options.device) {}

Batch Loader::batch(std::int64_t step) const {
  const std::int64_t rows = plan_.rows(step);
  const std::int64_t pixels = dataset_.images.size(1);
  Batch result{Tensor::empty({rows, pixels}), Tensor::empty({rows}, DType::i64),
               plan_.weight(step)};
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
