#include "lockstep/data/dataset.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/core/hash.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t digested_samples = 16;
constexpr std::size_t label_bytes = 16;  // integer fields of so few bytes are digested as a whole

std::string_view bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.raw()), tensor.bytes()};
}

}  // namespace

Fields Dataset::rows(std::span<const std::int64_t> samples, int) const {
  return detail::stack(samples, [&](std::size_t row) { return sample(samples[row]); });
}

std::uint64_t Dataset::digest() const {
  const std::int64_t n = size(), count = std::min(digested_samples, n);
  std::array<std::int64_t, digested_samples> samples;
  for (std::int64_t k = 0; k < count; ++k)
    samples[static_cast<std::size_t>(k)] = n / count * k + n % count * k / count;
  Fnv1a digest;
  digest.add(static_cast<std::uint64_t>(n));
  if (count == 0) return digest.value();
  for (const auto& [name, rows] :
       rows(std::span(samples).first(static_cast<std::size_t>(count)), 0)) {
    digest.add(name).add(name_of(rows.dtype()));
    for (const std::int64_t size : rows.shape()) digest.add(static_cast<std::uint64_t>(size));
    digest.add(bytes_of(rows));
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
    check<DataError>(value.gradient_ref().tape == GradientRef::nothing,
                     "[TensorDataset] field '{}' wants a gradient, and a batch is a copy without "
                     "one: detach() it, or take a parameter's value()",
                     name);
    const auto& [first_name, first] = *fields_.begin();
    check<DataError>(value.size(0) == first.size(0),
                     "[TensorDataset] field '{}' has {} rows, but '{}' {}", name, value.size(0),
                     first_name, first.size(0));
    size_ = first.size(0);
  }
}

Fields TensorDataset::sample(std::int64_t index) const {
  return detail::row_of(rows({&index, 1}, 0), 0);
}

Fields TensorDataset::rows(std::span<const std::int64_t> samples, int) const {
  for (const std::int64_t index : samples)
    check<UsageError>(0 <= index && index < size_, "[TensorDataset] sample {} of {}", index, size_);
  Fields result;
  for (const auto& [name, value] : fields_) {
    const Tensor rows =
        Tensor::empty(value.shape().with(0, 1, {std::ssize(samples)}), value.dtype());
    const std::size_t bytes = samples.empty() ? 0 : rows.bytes() / samples.size();
    std::byte* out = rows.raw();
    for (const std::int64_t index : samples) {
      std::memcpy(out, value.raw() + static_cast<std::size_t>(index) * bytes, bytes);
      out += bytes;
    }
    result.set(name, rows);
  }
  return result;
}

std::uint64_t TensorDataset::digest() const {
  Fnv1a digest;
  digest.add(Dataset::digest());
  for (const auto& [name, value] : fields_)
    if (!is_any_floating(value.dtype()) &&
        value.bytes() <= label_bytes * static_cast<std::size_t>(size_))
      digest.add(bytes_of(value));
  return digest.value();
}

namespace detail {

Tensor empty_rows(std::int64_t rows, const Tensor& sample) {
  return Tensor::empty(sample.shape().with(0, 0, {rows}), sample.dtype());
}

Fields row_of(const Fields& fields, std::int64_t row) {
  Fields result;
  for (const auto& [name, value] : fields)
    result.set(name, value.slice(row, row + 1).view(value.shape().with(0, 1, {})));
  return result;
}

void check_like(const Fields& sample, std::int64_t number, const Fields& other,
                std::int64_t other_number) {
  const bool same_names = std::ranges::all_of(
      other, [&](const Field& field) { return sample.find(field.name) != nullptr; });
  check<DataError>(same_names && sample.size() == other.size(),
                   "[Dataset] sample {} has the fields {}, but sample {} has {}", number,
                   sample.names(), other_number, other.names());
  for (const auto& [name, expected] : other) {
    const Tensor& value = sample[name];
    check<DataError>(value.dtype() == expected.dtype() && value.shape() == expected.shape(),
                     "[Dataset] field '{}' of sample {} is {} {}, but of sample {} {} {}", name,
                     number, value.dtype(), value.shape(), other_number, expected.dtype(),
                     expected.shape());
  }
}

Fields stack(std::span<const std::int64_t> numbers,
             const std::function<Fields(std::size_t row)>& sample) {
  Fields first, result;
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    const Fields one = sample(row);
    for (const auto& [name, value] : one) {
      check<DataError>(value.defined(), "[Dataset] field '{}' of sample {} is an undefined tensor",
                       name, numbers[row]);
      check<DataError>(value.gradient_ref().tape == GradientRef::nothing,
                       "[Dataset] field '{}' of sample {} wants a gradient, and a batch is a copy "
                       "without one: detach() it, or take a parameter's value()",
                       name, numbers[row]);
    }
    if (row == 0) {
      first = one;
      for (const auto& [name, value] : one)
        result.set(name, empty_rows(std::ssize(numbers), value));
    }
    check_like(one, numbers[row], first, numbers[0]);
    for (const auto& [name, rows] : result) {
      const auto at = static_cast<std::int64_t>(row);
      const Tensor& value = one[name];
      rows.slice(at, at + 1).view(value.shape()).copy_from(value.detach());
    }
  }
  return result;
}

}  // namespace detail

}  // namespace lockstep::data
