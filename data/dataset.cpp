#include "lockstep/data/dataset.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/core/hash.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t digested_samples = 16;
constexpr std::size_t label_bytes = 16;  // integer fields of so few bytes are digested as a whole

Shape with_rows(std::int64_t rows, const Shape& row) {
  std::array<std::int64_t, Shape::max_rank> sizes{rows};
  check<DataError>(row.rank() < Shape::max_rank,
                   "[Dataset] a sample of shape {} has {} dimensions; {} at most are supported",
                   row, row.rank(), Shape::max_rank - 1);
  std::ranges::copy(row, sizes.begin() + 1);
  return Shape(
      std::span<const std::int64_t>(sizes).first(static_cast<std::size_t>(row.rank() + 1)));
}

std::string_view bytes_of(const Tensor& tensor, std::int64_t begin, std::int64_t rows) {
  const std::size_t row =
      tensor.size(0) ? tensor.bytes() / static_cast<std::size_t>(tensor.size(0)) : 0;
  return {reinterpret_cast<const char*>(tensor.raw()) + static_cast<std::size_t>(begin) * row,
          static_cast<std::size_t>(rows) * row};
}

void add_kind(Fnv1a& digest, const Field& field) {
  digest.add(field.name).add(name_of(field.value.dtype()));
  for (const std::int64_t size : field.value.shape()) digest.add(static_cast<std::uint64_t>(size));
}

// `count` numbers of samples, spread over all `size`.
std::int64_t spread(std::int64_t k, std::int64_t count, std::int64_t size) {
  return size / count * k + size % count * k / count;
}

// Rows of `known` bytes, or, if that is 0, of `bytes`.
template <std::size_t known>
void copy_rows(std::byte* out, const std::byte* in, std::span<const std::int64_t> samples,
               std::size_t bytes) {
  const std::size_t size = known ? known : bytes;
  for (const std::int64_t index : samples) {
    std::memcpy(out, in + static_cast<std::size_t>(index) * size, size);
    out += size;
  }
}

}  // namespace

Fields Dataset::rows(std::span<const std::int64_t> samples, int) const {
  detail::Stack stack(std::ssize(samples));
  if (samples.empty() && size() > 0) stack.add(sample(0), 0);
  for (const std::int64_t index : samples) stack.add(sample(index), index);
  return stack.fields();
}

std::uint64_t Dataset::digest() const {
  const std::int64_t n = size(), count = std::min(digested_samples, n);
  std::array<std::int64_t, digested_samples> samples;
  for (std::int64_t k = 0; k < count; ++k)
    samples[static_cast<std::size_t>(k)] = spread(k, count, n);
  Fnv1a digest;
  digest.add(static_cast<std::uint64_t>(n));
  for (const Field& field : rows(std::span(samples).first(static_cast<std::size_t>(count)), 0)) {
    add_kind(digest, field);
    digest.add(bytes_of(field.value, 0, count));
  }
  return digest.value();
}

Fields Dataset::all() const {
  const Tensor samples = Tensor::arange(size());
  return rows(samples.span<std::int64_t>(), 0);
}

TensorDataset::TensorDataset(Fields fields) : fields_(std::move(fields)) {
  for (const auto& [name, value] : fields_) {
    check<DataError>(
        value.defined() && value.rank() > 0,
        "[TensorDataset] field '{}' has no first dimension, whose rows are the samples", name);
    check<DeviceError>(value.device() == Device{},
                       "[TensorDataset] field '{}' lies on {}; samples lie on the cpu, and "
                       "LoaderOptions::device says where batches are wanted",
                       name, value.device().to_string());
    const auto& [first_name, first] = *fields_.begin();
    check<DataError>(value.size(0) == first.size(0),
                     "[TensorDataset] field '{}' has {} rows, but '{}' {}", name, value.size(0),
                     first_name, first.size(0));
    size_ = first.size(0);
  }
}

Fields TensorDataset::sample(std::int64_t index) const {
  check<UsageError>(0 <= index && index < size_, "[TensorDataset] sample {} of {}", index, size_);
  return detail::row_of(fields_, index);
}

Fields TensorDataset::rows(std::span<const std::int64_t> samples, int) const {
  for (const std::int64_t index : samples)
    check<UsageError>(0 <= index && index < size_, "[TensorDataset] sample {} of {}", index, size_);
  Fields result;
  for (const auto& [name, value] : fields_) {
    const Tensor rows =
        Tensor::empty(with_rows(std::ssize(samples), detail::row_shape(value)), value.dtype());
    const std::size_t bytes = samples.empty() ? 0 : rows.bytes() / samples.size();
    if (bytes ==
        sizeof(std::int64_t))  // labels; known to the compiler, the copy is one instruction
      copy_rows<sizeof(std::int64_t)>(rows.raw(), value.raw(), samples, bytes);
    else
      copy_rows<0>(rows.raw(), value.raw(), samples, bytes);
    result.set(name, rows);
  }
  return result;
}

std::uint64_t TensorDataset::digest() const {
  const std::int64_t count = std::min(digested_samples, size_);
  Fnv1a digest;
  digest.add(static_cast<std::uint64_t>(size_));
  for (const Field& field : fields_) {
    add_kind(digest, field);
    const bool label = !is_any_floating(field.value.dtype()) && size_ > 0 &&
                       field.value.bytes() / static_cast<std::size_t>(size_) <= label_bytes;
    if (label) digest.add(bytes_of(field.value, 0, size_));
    for (std::int64_t k = 0; !label && k < count; ++k)
      digest.add(bytes_of(field.value, spread(k, count, size_), 1));
  }
  return digest.value();
}

namespace detail {

Shape row_shape(const Tensor& field) {
  return Shape(std::span<const std::int64_t>(field.shape().begin() + 1, field.shape().end()));
}

Fields row_of(const Fields& fields, std::int64_t row) {
  Fields result;
  for (const auto& [name, value] : fields)
    result.set(name, value.slice(row, row + 1).view(row_shape(value)));
  return result;
}

void Stack::begin(const Fields& sample, std::int64_t index) {
  first_ = index;
  for (const auto& [name, value] : sample)
    fields_.set(name, Tensor::empty(with_rows(rows_, value.shape()), value.dtype()));
}

void Stack::add(const Fields& sample, std::int64_t index) {
  for (const auto& [name, value] : sample)
    check<DataError>(value.defined(), "[Dataset] field '{}' of sample {} is an undefined tensor",
                     name, index);
  if (done_ == 0) begin(sample, index);
  const bool same_names = std::ranges::all_of(
      fields_, [&](const Field& field) { return sample.find(field.name) != nullptr; });
  check<DataError>(same_names && sample.size() == fields_.size(),
                   "[Dataset] sample {} has the fields {}, but sample {} has {}", index,
                   sample.names(), first_, fields_.names());
  for (const auto& [name, rows] : fields_) {
    const Tensor& value = sample[name];
    const Shape shape = row_shape(rows);
    check<DataError>(value.dtype() == rows.dtype() && value.shape() == shape,
                     "[Dataset] field '{}' of sample {} is {} {}, but of sample {} {} {}", name,
                     index, value.dtype(), value.shape(), first_, rows.dtype(), shape);
    if (done_ >= rows_) continue;
    const Tensor host = value.detach().to(Device{});
    if (host.bytes() > 0)
      std::memcpy(rows.raw() + static_cast<std::size_t>(done_) * host.bytes(), host.raw(),
                  host.bytes());
  }
  ++done_;
}

}  // namespace detail

}  // namespace lockstep::data
