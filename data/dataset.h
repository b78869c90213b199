#pragma once
/// Where samples come from: a data set that a program defines, or tensors in memory. data::Loader
/// (loader.h) makes batches of either.
///
///   struct Squares : data::Dataset {
///     std::int64_t size() const override { return 100; }
///     data::Fields sample(std::int64_t i) const override {
///       const auto x = static_cast<double>(i);
///       return {{"x", Tensor::full({1}, x)}, {"y", Tensor::full({1}, x * x)}};
///     }
///   };
///   for (const data::Batch& batch : data::Loader(Squares(), {.batch = 10})) ...  // x, y: (10, 1)

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "lockstep/data/fields.h"

namespace lockstep::data {

/// Samples by number, 0 <= i < size(). All samples have the same fields, each of the same dtype and
/// shape; a scalar has the shape {}. Fields named "x" and "y" are also batch.x and batch.y.
/// Thread-safety: loaders may call the const functions from several threads at a time.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;  ///< the number of samples
  /// The fields of one sample.
  virtual Fields sample(std::int64_t index) const = 0;

  /// The fields of many samples, stacked along a new first dimension. The tensors are the caller's.
  /// Override it where that is faster than sample by sample. `epoch` is the loader's; Map (map.h)
  /// needs it. A loader asks for one sample at least; of none, there may be no fields.
  /// Throws DataError that names field and sample if samples differ in fields, dtype or shape, or
  /// one wants a gradient: a copy would lose it.
  virtual Fields rows(std::span<const std::int64_t> samples, int epoch) const;

  /// What ranks compare: they must train on the same data. Of size() and of up to 16 samples, which
  /// are spread over the data set and read for it. Override it if a sample is not the same each
  /// time, or dear.
  virtual std::uint64_t digest() const;

  /// All samples at once, as an evaluation may want them.
  Fields all() const;

 protected:
  Dataset() = default;
  Dataset(const Dataset&) = default;
  Dataset& operator=(const Dataset&) = default;
};

/// Tensors whose first sizes are equal: sample i is row i of each.
///
///   data::TensorDataset train({{"x", features}, {"y", prices}});  // (n, 8), (n, 1)
///
/// Copies share the elements. The loader copies row by row, without a call per sample.
class TensorDataset : public Dataset {
 public:
  TensorDataset() = default;  ///< of no samples, and no fields
  /// Throws DataError for a scalar or different first sizes, DeviceError for a tensor that does not
  /// lie on the cpu.
  explicit TensorDataset(Fields fields);

  /// A whole field, as it was given. Throws DataError, which lists the names that exist.
  const Tensor& operator[](std::string_view name) const { return fields_[name]; }

  std::int64_t size() const override { return size_; }
  Fields sample(std::int64_t index) const override;
  Fields rows(std::span<const std::int64_t> samples, int epoch) const override;
  /// Of all elements of integer fields of at most 16 bytes per sample (labels), and of up to 16
  /// samples of the others: another version of the data would change all of them.
  std::uint64_t digest() const override;

 private:
  Fields fields_;
  std::int64_t size_ = 0;
};

/// Any data set, kept alive: what Loader, Map and Subset take. Made of a data set, it holds a copy
/// (of a TensorDataset: of its handles), so that nothing dangles. If yours is dear to copy, give a
/// std::shared_ptr to it. Copies share the data set; what was moved from still has it.
class AnyDataset {
 public:
  /// Takes the data set itself: a copy, or what was moved in.
  template <std::derived_from<Dataset> D>
  AnyDataset(D dataset) : dataset_(std::make_shared<const D>(std::move(dataset))) {}
  /// Throws UsageError for a null pointer.
  template <std::derived_from<Dataset> D>
  AnyDataset(std::shared_ptr<D> dataset) : dataset_(std::move(dataset)) {
    check<UsageError>(dataset_ != nullptr, "[Dataset] the pointer to the data set is null");
  }
  AnyDataset(const AnyDataset&) = default;
  AnyDataset& operator=(const AnyDataset&) = default;
  const Dataset& operator*() const { return *dataset_; }
  const Dataset* operator->() const { return dataset_.get(); }

 private:
  std::shared_ptr<const Dataset> dataset_;
};

namespace detail {

/// Samples of these numbers, for messages, stacked along a new first dimension: `sample` gives the
/// sample of a row. Throws DataError for a sample that differs from the first, or wants a gradient.
Fields stack(std::span<const std::int64_t> numbers,
             const std::function<Fields(std::size_t row)>& sample);
/// Room for rows like this sample.
Tensor empty_rows(std::int64_t rows, const Tensor& sample);
/// Throws DataError, which names both samples by their numbers, unless they have the same fields,
/// each of the same dtype and shape.
void check_like(const Fields& sample, std::int64_t number, const Fields& other,
                std::int64_t other_number);
/// Row `row` of each field. Shares the elements.
Fields row_of(const Fields& fields, std::int64_t row);

}  // namespace detail

}  // namespace lockstep::data
