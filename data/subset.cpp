#include "lockstep/data/subset.h"

#include <fmt/ranges.h>

#include <cmath>
#include <utility>

#include "lockstep/core/generator.h"
#include "lockstep/core/hash.h"

namespace lockstep::data {

Subset::Subset(AnyDataset dataset, Tensor indices)
    : dataset_(dataset), indices_(std::move(indices)) {
  check<DataError>(indices_.defined() && indices_.dtype() == DType::i64 && indices_.rank() == 1,
                   "[Subset] indices are i64 of one dimension, not {} {}", indices_.dtype(),
                   indices_.defined() ? indices_.shape().to_string() : "without elements");
  const std::int64_t n = dataset_->size();
  for (const std::int64_t index : indices_.span<std::int64_t>())
    check<DataError>(0 <= index && index < n, "[Subset] index {} of a data set of {} samples",
                     index, n);
}

std::int64_t Subset::index(std::int64_t sample) const {
  check<UsageError>(0 <= sample && sample < size(), "[Subset] sample {} of {}", sample, size());
  return indices_.data<std::int64_t>()[sample];
}

Fields Subset::sample(std::int64_t sample) const { return dataset_->sample(index(sample)); }

Fields Subset::rows(std::span<const std::int64_t> samples, int epoch) const {
  const Tensor theirs = Tensor::empty({std::ssize(samples)}, DType::i64);
  for (std::size_t i = 0; i < samples.size(); ++i)
    theirs.data<std::int64_t>()[i] = index(samples[i]);
  return dataset_->rows(theirs.span<std::int64_t>(), epoch);
}

std::uint64_t Subset::digest() const {
  const std::string_view bytes(reinterpret_cast<const char*>(indices_.raw()), indices_.bytes());
  return Fnv1a().add(dataset_->digest()).add(bytes).value();
}

std::vector<Subset> split(const AnyDataset& dataset, const std::vector<std::int64_t>& sizes,
                          std::uint64_t seed) {
  const std::int64_t n = dataset->size();
  std::int64_t rest = n;
  for (const std::int64_t size : sizes) rest = 0 <= size && size <= rest ? rest - size : -1;
  check<UsageError>(rest == 0, "[split] sizes {} do not add up to the {} samples", sizes, n);

  const Tensor order = Generator(seed).randperm(n);
  std::vector<Subset> parts;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    parts.emplace_back(dataset, order.slice(begin, begin + size));
    begin += size;
  }
  return parts;
}

TwoParts split(const AnyDataset& dataset, double fraction, std::uint64_t seed) {
  check<UsageError>(0 <= fraction && fraction <= 1, "[split] a fraction of {}; it is from 0 to 1",
                    fraction);
  const std::int64_t n = dataset->size();
  const auto train = static_cast<std::int64_t>(std::llround(fraction * static_cast<double>(n)));
  std::vector<Subset> parts = split(dataset, {train, n - train}, seed);
  return {std::move(parts[0]), std::move(parts[1])};
}

}  // namespace lockstep::data
