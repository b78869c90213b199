#pragma once
/// A tensor: a value handle {storage, shape, offset, dtype}, always contiguous and row-major.
/// Copying a Tensor shares its elements. The only views are `view` (another shape), `slice` (a
/// range of the first dimension) and `rows`; an operation that changes the order of elements copies
/// them.
///
/// Thread-safety: distinct handles may be used by distinct threads; writes to shared elements need
/// the caller's own ordering.

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/storage.h"

namespace lockstep {

/// Where the gradient of a tensor goes; written and read by autograd/ alone. Either the node of a
/// living tape (`tape` is that tape's number), or a parameter (`tape` is `parameter`), or nothing.
struct GradientRef {
  static constexpr std::uint64_t nothing = 0;
  static constexpr std::uint64_t parameter = ~std::uint64_t{0};
  std::uint64_t tape = nothing;
  void* target = nullptr;
  std::uint64_t generation = 0;         // of the nodes of that tape
  std::uint64_t gradient_of = nothing;  // of a constant: the tape whose backward it comes from
};

class Tensor {
 public:
  /// Undefined: it has no elements (numel() and bytes() are 0, raw() is null), and its dtype() is
  /// f32. What asks for a shape or a device throws StateError.
  Tensor() = default;

  /// Contents undefined. These four throw DeviceError for a device that this build or this machine
  /// does not have, MemoryError, with the shape, when the memory is used up.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32, Device device = {});
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32, Device device = {});
  /// Every element is `value`, as fill() converts it.
  static Tensor full(const Shape& shape, double value, DType dtype = DType::f32,
                     Device device = {});
  /// Shape {}: one element.
  static Tensor scalar(double value, DType dtype = DType::f32, Device device = {}) {
    return full({}, value, dtype, device);
  }
  /// Every element is 1.
  static Tensor ones(const Shape& shape, DType dtype = DType::f32, Device device = {}) {
    return full(shape, 1, dtype, device);
  }
  /// On the cpu, as the ones below. begin, begin + step, ... before end: i64, or f32 if one of the
  /// numbers is floating. Throws UsageError for a step of 0.
  static Tensor arange(std::int64_t begin, std::int64_t end, std::int64_t step = 1);
  static Tensor arange(std::int64_t end) { return arange(0, end); }
  template <class... Numbers>
  requires(std::is_floating_point_v<Numbers> || ...) static Tensor arange(Numbers... numbers) {
    return arange_f32(static_cast<double>(numbers)...);
  }
  /// f32 or f64: n numbers from begin to end, both included, evenly apart.
  static Tensor linspace(double begin, double end, std::int64_t n, DType dtype = DType::f32);
  /// f32 or f64 (n, n): 1 on the diagonal, else 0.
  static Tensor eye(std::int64_t n, DType dtype = DType::f32);
  // From the thread's default_generator() (generator.h): PyTorch's numbers for the same seed.
  static Tensor rand(const Shape& shape, DType dtype = DType::f32);   ///< uniform in [0, 1)
  static Tensor randn(const Shape& shape, DType dtype = DType::f32);  ///< normal
  static Tensor randint(std::int64_t low, std::int64_t high, const Shape& shape);  ///< i64
  static Tensor randint(std::int64_t high, const Shape& shape) { return randint(0, high, shape); }
  static Tensor randperm(std::int64_t n);  ///< i64: 0 .. n-1, shuffled
  /// A vector {1.0, 2.0} or std::vector, or a matrix {{1.0, 2.0}, {3.0, 4.0}}, of the C++ type of
  /// its elements; {1, 2} is i64, as labels are. Throws ShapeError for rows of different sizes.
  template <class T>
  static Tensor from(std::initializer_list<T> values) {
    return from(std::vector<Written<T>>(values.begin(), values.end()));
  }
  template <class T>
  static Tensor from(std::initializer_list<std::initializer_list<T>> rows);
  template <class T>
  static Tensor from(const std::vector<T>& values) {
    return of<T>({static_cast<std::int64_t>(values.size())}, values);
  }
  /// Copies `values`, whose number must be shape.numel().
  template <class T>
  static Tensor of(const Shape& shape, std::span<const T> values);
  template <class T>
  static Tensor of(const Shape& shape, std::initializer_list<T> values) {
    return of<T>(shape, std::span<const T>(values.begin(), values.size()));
  }
  template <class T>
  static Tensor of(const Shape& shape, const std::vector<T>& values) {
    return of<T>(shape, std::span<const T>(values));
  }
  /// A tensor over `storage`, beginning `offset` bytes into it. Throws StateError for a storage
  /// without memory, ShapeError if the elements do not fit into it or if `offset` is not a multiple
  /// of the element's size.
  static Tensor over(Storage storage, std::size_t offset, const Shape& shape, DType dtype);

  /// Whether it has a storage; false for Tensor().
  bool defined() const { return static_cast<bool>(storage_); }
  /// The sizes, how many there are, one of them (counted from 0), and their product.
  const Shape& shape() const {
    check<StateError>(defined(), "[shape] of an undefined tensor");
    return shape_;
  }
  std::int64_t size(int dimension) const { return shape()[dimension]; }
  int rank() const { return shape().rank(); }
  std::int64_t numel() const { return defined() ? shape_.numel() : 0; }
  DType dtype() const { return dtype_; }  ///< the type of its elements
  /// Where its elements lie.
  Device device() const {
    check<StateError>(defined(), "[device] of an undefined tensor");
    return storage_.device();
  }
  /// The size of its elements together.
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype_); }
  /// The memory that it shares with its copies and views; other tensors may lie there, too.
  const Storage& storage() const { return storage_; }

  /// The first element, in the device's memory.
  std::byte* raw() const { return defined() ? storage_.data() + offset_ : nullptr; }
  /// The elements, in the device's memory. Throws DTypeError unless T is this tensor's element
  /// type.
  template <class T>
  T* data() const;
  /// The elements of a tensor on the cpu; throws DeviceError elsewhere.
  template <class T>
  std::span<T> span() const;
  /// A copy of the elements. On a GPU it waits for them.
  template <class T>
  std::vector<T> to_vector() const;
  /// The value of a tensor of one element, of any dtype. On a GPU it waits for it.
  double item() const;
  /// The element at an index of rank() numbers, of any dtype: x.item({1, -1}). Negative ones count
  /// from the end. On a GPU it waits for it. Throws ShapeError for an element that does not exist.
  double item(std::initializer_list<std::int64_t> index) const;
  /// Sets that element, as fill() converts `value`. What writes to elements, here and elsewhere,
  /// throws StateError for a tensor that is recorded on a tape, or a parameter's operand: gradients
  /// would not know of it.
  void set(std::initializer_list<std::int64_t> index, double value) const;

  /// The same elements in another shape of as many. Not recorded: on a tensor whose gradient is
  /// being recorded it throws StateError (there, use `reshape`).
  Tensor view(const Shape& shape) const;
  /// Rows [begin, end) of the first dimension. Not recorded, like `view`.
  Tensor slice(std::int64_t begin, std::int64_t end) const;
  /// x[0], x[1], ...: the rows of the first dimension, which is gone, over the same elements. Not
  /// recorded, like `view` (there, use `select`). Throws ShapeError for a scalar.
  std::vector<Tensor> rows() const;
  /// The same elements, cut off from any tape.
  Tensor detach() const;
  Tensor clone() const;  ///< a copy of them, in new memory. Not recorded, like `view`.
  /// The same elements on `device`: this tensor itself if it lies there, else a copy. Not recorded:
  /// on a tensor whose gradient is being recorded it throws StateError.
  Tensor to(Device device) const;
  /// Copies the elements of `source`, of the same shape and dtype and on any device, into this
  /// tensor's, which on a GPU must not overlap them. Throws StateError for a recorded source: its
  /// gradient would end here. To the cpu it waits for the elements; from the cpu, `source` may
  /// change as soon as it returns, unless its memory is page-locked (gpu.h).
  void copy_from(const Tensor& source) const;
  /// Sets every element to `value` in this tensor's dtype: floating dtypes round to the nearest
  /// (what is beyond their largest number becomes infinite). Throws UsageError for a value that an
  /// integer dtype does not hold: a fraction, NaN, infinity, one out of its range.
  void fill(double value) const;
  /// Sets all bytes to 0: the value 0 in every dtype.
  void fill_zero() const;

  /// Throws StateError if gradients would not know of a write by `call`. `instead` is what to do.
  void check_writable(std::string_view call, std::string_view instead) const;
  /// Says that `call` has written to the elements, and what the new rows are made of: rows that are
  /// not all of the memory's are mixed by `call`, if there are samples on either side.
  void changed_by(std::string_view call, RowOrigin rows) const;

  /// What the rows of its batch have become in it; of a slice or a row they are mixed. Tensor() has
  /// none.
  RowOrigin row_origin() const;

  /// For autograd/ alone.
  const GradientRef& gradient_ref() const { return gradient_; }
  void set_gradient_ref(GradientRef ref) { gradient_ = ref; }

 private:
  friend Tensor of_samples(const Tensor& x);
  template <class T>  // what a number in the source text becomes
  using Written = std::conditional_t<std::is_same_v<T, int>, std::int64_t, T>;
  static Tensor arange_f32(double begin, double end, double step = 1);
  static Tensor arange_f32(double end) { return arange_f32(0, end); }

  Storage storage_;
  std::size_t offset_ = 0;  // bytes
  Shape shape_;
  DType dtype_ = DType::f32;
  bool part_ = false;  // of a larger tensor's first dimension
  GradientRef gradient_;

  void fill_for(const char* call, double value) const;
  Tensor to_be_read(const char* call) const;
  Tensor element(const char* call, std::initializer_list<std::int64_t> index) const;
  void check_not_recorded(const char* call, const char* instead = "") const;
};

template <class T>
T* Tensor::data() const {
  check<DTypeError>(dtype_ == dtype_of<T>(),
                    "[data] a tensor of {} is read as {} (cast() converts)", dtype_, dtype_of<T>());
  return reinterpret_cast<T*>(raw());
}

template <class T>
std::span<T> Tensor::span() const {
  if (defined() && device().kind != Device::Kind::cpu)
    fail<DeviceError>("[span] the elements lie on {}: read them with to_vector() or to(Device{{}})",
                      device().to_string());
  StepGraph::refuse_in_recording("span");
  return {data<T>(), static_cast<std::size_t>(numel())};
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  const Tensor host = to_be_read("to_vector");
  try {
    return {host.data<T>(), host.data<T>() + host.numel()};
  } catch (const std::bad_alloc&) {
    fail<MemoryError>("[to_vector] {} of shape {}: out of memory: {} bytes were asked for", dtype_,
                      shape_, bytes());
  }
}

template <class T>
Tensor Tensor::of(const Shape& shape, std::span<const T> values) {
  check<ShapeError>(shape.numel() == static_cast<std::int64_t>(values.size()),
                    "[tensor] {} values for shape {}", values.size(), shape);
  Tensor result = empty(shape, dtype_of<T>());
  std::copy(values.begin(), values.end(), result.data<T>());
  return result;
}

template <class T>
Tensor Tensor::from(std::initializer_list<std::initializer_list<T>> rows) {
  std::vector<Written<T>> values;
  for (const auto& row : rows) {
    check<ShapeError>(row.size() == rows.begin()->size(), "[tensor] rows of {} and {} elements",
                      rows.begin()->size(), row.size());
    values.insert(values.end(), row.begin(), row.end());
  }
  const auto columns = rows.size() == 0 ? 0 : rows.begin()->size();
  return of<Written<T>>(
      {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(columns)}, values);
}

/// Of x's shape, dtype and device. With lanes, rows like those of samples are samples, too; numbers
/// that are drawn like them are not: on other ranks they would differ. They come from a generator
/// that is split off the default one.
Tensor full_like(const Tensor& x, double value);
inline Tensor zeros_like(const Tensor& x) { return full_like(x, 0); }
inline Tensor ones_like(const Tensor& x) { return full_like(x, 1); }
Tensor rand_like(const Tensor& x);
Tensor randn_like(const Tensor& x);

/// For batches with lanes (lanes.h): says that the caller has made row i of x of sample i of this
/// rank alone (or some equal parts of a row of each), in a way that does not depend on the rank.
/// Such a tensor can stand beside what is made of the batch. Returns x, or a copy if x is a part of
/// a larger tensor.
Tensor of_samples(const Tensor& x);

/// How often this thread has copied elements: Tensor::copy_from, clone() and to(), and gradients
/// that backward could not write or share in place. A test that nothing is copied counts here.
inline thread_local std::uint64_t copies_made = 0;

}  // namespace lockstep
