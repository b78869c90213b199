#include "lockstep/core/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "lockstep/core/generator.h"
#include "lockstep/core/gpu/device_memory.h"

namespace lockstep {

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device) {
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  try {
    return over(Storage::allocate(bytes, device), 0, shape, dtype);
  } catch (const MemoryError& error) {
    fail<MemoryError>("[tensor] {} of shape {}: {}", dtype, shape, error.what());
  }
}

Tensor Tensor::over(Storage storage, std::size_t offset, const Shape& shape, DType dtype) {
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  check<ShapeError>(offset <= storage.bytes() && bytes <= storage.bytes() - offset,
                    "[tensor] {} {} needs {} bytes from byte {} on, of a storage of {}", shape,
                    dtype, bytes, offset, storage.bytes());
  check<ShapeError>(offset % size_of(dtype) == 0, "[tensor] {} cannot begin at byte {}", dtype,
                    offset);
  Tensor result;
  result.storage_ = std::move(storage);
  result.offset_ = offset;
  result.shape_ = shape;
  result.dtype_ = dtype;
  return result;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device) {
  Tensor result = empty(shape, dtype, device);
  result.fill_zero();
  return result;
}

Tensor Tensor::arange(std::int64_t begin, std::int64_t end, std::int64_t step) {
  check<UsageError>(step != 0 && step != std::numeric_limits<std::int64_t>::min(),
                    "[arange] a step of {}", step);
  std::int64_t span = 0;
  const bool far = step > 0 ? __builtin_sub_overflow(end, begin, &span)
                            : __builtin_sub_overflow(begin, end, &span);
  check<UsageError>(!far, "[arange] from {} to {} by {} is too far", begin, end, step);
  span = std::max<std::int64_t>(0, span);
  const std::int64_t stride = std::abs(step), n = span / stride + (span % stride != 0);
  const Tensor result = empty({n}, DType::i64);
  for (std::int64_t i = 0; i < n; ++i) result.data<std::int64_t>()[i] = begin + i * step;
  return result;
}

Tensor Tensor::arange_f32(double begin, double end, double step) {
  const double count = std::ceil((end - begin) / step);
  check<UsageError>(count < 0x1p53, "[arange] from {} to {} by {}", begin, end, step);  // not NaN
  const auto n = static_cast<std::int64_t>(std::max(0.0, count));
  const Tensor result = empty({n});
  for (std::int64_t i = 0; i < n; ++i)
    result.data<float>()[i] = static_cast<float>(begin + step * static_cast<double>(i));
  return result;
}

Tensor Tensor::linspace(double begin, double end, std::int64_t n, DType dtype) {
  const Tensor result = empty({n}, dtype);
  visit_floating("linspace", dtype, [&](auto zero) {
    using T = decltype(zero);
    const T first = static_cast<T>(begin), last = static_cast<T>(end);
    const T step = n > 1 ? (last - first) / static_cast<T>(n - 1) : T(0);
    // From both ends, as PyTorch does, so that the last is `end` itself.
    for (std::int64_t i = 0; i < n; ++i)
      result.data<T>()[i] = i < n / 2 || n == 1 ? first + step * static_cast<T>(i)
                                                : last - step * static_cast<T>(n - 1 - i);
  });
  return result;
}

Tensor Tensor::eye(std::int64_t n, DType dtype) {
  const Tensor result = zeros({n, n}, dtype);
  visit_floating("eye", dtype, [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t i = 0; i < n; ++i) result.data<T>()[i * (n + 1)] = 1;
  });
  return result;
}

Tensor Tensor::rand(const Shape& shape, DType dtype) {
  const Tensor result = empty(shape, dtype);
  default_generator().uniform(result);
  return result;
}

Tensor Tensor::randn(const Shape& shape, DType dtype) {
  const Tensor result = empty(shape, dtype);
  default_generator().normal(result);
  return result;
}

Tensor Tensor::randint(std::int64_t low, std::int64_t high, const Shape& shape) {
  const Tensor result = empty(shape, DType::i64);
  default_generator().randint(low, high, result);
  return result;
}
Tensor Tensor::randperm(std::int64_t n) { return default_generator().randperm(n); }

Tensor Tensor::full(const Shape& shape, double value, DType dtype, Device device) {
  Tensor result = empty(shape, dtype, device);
  result.fill(value);
  return result;
}

namespace {

// `value` as an element. Converting to an integer that does not hold the value would be undefined.
template <class T>
T element_of(const char* call, double value) {
  if constexpr (std::is_integral_v<T>) {
    constexpr auto least = static_cast<double>(std::numeric_limits<T>::min());
    const double end = std::ldexp(1.0, std::numeric_limits<T>::digits);  // the first beyond
    check<UsageError>(value >= least && value < end && value == std::trunc(value),
                      "[{}] an element of {} cannot be {}", call, dtype_of<T>(), value);
  }
  return static_cast<T>(value);
}

}  // namespace

// What a recorded step would read on the cpu, the next step finds otherwise.
Tensor Tensor::to_be_read(const char* call) const {
  if (!defined()) return {};
  if (device().kind == Device::Kind::cpu) StepGraph::refuse_in_recording(call);
  return detach().to(Device{});
}

double Tensor::item() const {
  check<ShapeError>(numel() == 1, "[item] needs one element, tensor has shape {}",
                    defined() ? shape_.to_string() : "undefined");
  const Tensor host = to_be_read("item");
  return visit_any(dtype_,
                   [&](auto zero) { return static_cast<double>(*host.data<decltype(zero)>()); });
}

// The element at `index`, as a scalar over the same memory.
Tensor Tensor::element(const char* call, std::initializer_list<std::int64_t> index) const {
  check<StateError>(defined(), "[{}] of an undefined tensor", call);
  const auto refuse = [&] {
    fail<ShapeError>("[{}] there is no element ({}) in a tensor of shape {}", call,
                     fmt::join(index, ", "), shape_);
  };
  if (static_cast<int>(index.size()) != rank()) refuse();
  std::int64_t place = 0;
  int d = 0;
  for (const std::int64_t i : index) {
    const std::int64_t n = shape_[d++];
    if (i < -n || i >= n) refuse();
    place = place * n + (i < 0 ? i + n : i);
  }
  Tensor result = detach();
  result.shape_ = {};
  result.part_ = true;
  result.offset_ += static_cast<std::size_t>(place) * size_of(dtype_);
  return result;
}

double Tensor::item(std::initializer_list<std::int64_t> index) const {
  return element("item", index).item();
}

void Tensor::set(std::initializer_list<std::int64_t> index, double value) const {
  check_writable("set", "take where(), which makes another tensor");
  element("set", index).fill_for("set", value);
}

void Tensor::check_writable(std::string_view call, std::string_view instead) const {
  if (gradient_.tape == GradientRef::nothing) [[likely]]
    return;
  const bool parameter = gradient_.tape == GradientRef::parameter;
  fail<StateError>("[{}] {} is {}, and gradients would not know of the change: {}", call, shape_,
                   parameter ? "the operand of a parameter" : "recorded on a tape",
                   parameter ? "write to its value()" : instead);
}

// What gives the elements another handle is not recorded.
void Tensor::check_not_recorded(const char* call, const char* instead) const {
  check<StateError>(defined(), "[{}] of an undefined tensor", call);
  check<StateError>(gradient_.tape == GradientRef::nothing,
                    "[{}] {} is recorded on a tape: {}detach() it first", call, shape_, instead);
}

Tensor Tensor::view(const Shape& shape) const {
  check_not_recorded("view", "use reshape(), or ");
  check<ShapeError>(shape.numel() == numel(), "[view] {} does not have as many elements as {}",
                    shape, shape_);
  Tensor result = *this;
  result.shape_ = shape;
  return result;
}

Tensor Tensor::slice(std::int64_t begin, std::int64_t end) const {
  check_not_recorded("slice");
  check<ShapeError>(rank() > 0 && 0 <= begin && begin <= end && end <= shape_[0],
                    "[slice] there are no rows {}..{} in {}", begin, end, shape_);
  const std::int64_t row = shape_[0] ? numel() / shape_[0] : 0;
  Tensor result = *this;
  result.shape_ = shape_.with(0, 1, {end - begin});
  result.part_ = true;
  result.offset_ += static_cast<std::size_t>(begin * row) * size_of(dtype_);
  return result;
}

std::vector<Tensor> Tensor::rows() const {
  check_not_recorded("rows", "use select(), or ");
  check<ShapeError>(rank() > 0, "[rows] of a scalar");
  std::vector<Tensor> result;
  for (std::int64_t i = 0; i < shape_[0]; ++i)
    result.push_back(slice(i, i + 1).view(shape_.with(0, 1, {})));
  return result;
}

Tensor Tensor::detach() const {
  Tensor result = *this;
  result.gradient_ = {};
  return result;
}

RowOrigin Tensor::row_origin() const {
  const RowOrigin whole = defined() ? storage_.origin() : RowOrigin();
  return part_ && whole.is_samples() ? RowOrigin::mixed("slice") : whole;
}

Tensor Tensor::clone() const {
  check_not_recorded("clone");
  Tensor result = empty(shape_, dtype_, device());
  result.copy_from(*this);
  result.gradient_ = gradient_;
  return result;
}

Tensor Tensor::to(Device target) const {
  check<StateError>(gradient_.tape == GradientRef::nothing,
                    "[to] {} is recorded on a tape: detach() it first", shape_);
  if (device() == target) return *this;
  Tensor result = empty(shape_, dtype_, target);
  result.copy_from(*this);
  result.gradient_ = gradient_;
  return result;
}

void Tensor::copy_from(const Tensor& source) const {
  ++copies_made;
  check<StateError>(defined() && source.defined(), "[copy] an undefined tensor");
  check_writable("copy_from", "take the source in its place");
  check<StateError>(source.gradient_.tape == GradientRef::nothing,
                    "[copy_from] the source {} is {}, and a copy has no gradient: take the source "
                    "in its place, or its {} to copy the elements",
                    shape_,
                    source.gradient_.tape == GradientRef::parameter ? "the operand of a parameter"
                                                                    : "recorded on a tape",
                    source.gradient_.tape == GradientRef::parameter ? "value()" : "detach()");
  check<ShapeError>(shape_ == source.shape_, "[copy] shapes differ: {} from {}", shape_,
                    source.shape_);
  check<DTypeError>(dtype_ == source.dtype_, "[copy] dtypes differ: {} from {}", dtype_,
                    source.dtype_);
  changed_by("copy_from", source.row_origin());
  if (bytes() == 0) return;
  const Device to = device(), from = source.device();
  if (to.kind == Device::Kind::cpu && from.kind == Device::Kind::cpu) {
    StepGraph::refuse_in_recording("copy_from");
    std::memmove(raw(), source.raw(), bytes());
  } else {
    gpu::copy(raw(), to, source.raw(), from, bytes());
  }
}

// Which of a batch's rows a part is, depends on the rank.
void Tensor::changed_by(std::string_view call, RowOrigin rows) const {
  storage_.changed();
  if (!part_ || rows.is_mixed())
    storage_.set_origin(rows);
  else if (rows.is_samples() || storage_.origin().is_samples())
    storage_.set_origin(RowOrigin::mixed(call));
}

void Tensor::fill(double value) const {
  check<StateError>(defined(), "[fill] of an undefined tensor");
  check_writable("fill", "take full_like(), which makes another tensor");
  fill_for("fill", value);
}

// Equal rows are those of samples as well.
void Tensor::fill_for(const char* call, double value) const {
  visit_any(dtype_, [&](auto zero) {
    using T = decltype(zero);
    const T element = element_of<T>(call, value);
    changed_by(call, row_origin().is_samples() ? RowOrigin::samples() : RowOrigin());
    if (device().kind == Device::Kind::cpu) {
      StepGraph::refuse_in_recording(call);
      std::fill_n(data<T>(), numel(), element);
    } else if (numel() > 0) {
      gpu::fill(raw(), numel(), dtype_, &element, device());
    }
  });
}

void Tensor::fill_zero() const {
  check_writable("fill_zero", "take zeros_like(), which makes another tensor");
  changed_by("fill_zero", row_origin().is_samples() ? RowOrigin::samples() : RowOrigin());
  if (bytes() == 0) return;
  if (device().kind != Device::Kind::cpu) return gpu::fill_zero(raw(), bytes(), device());
  StepGraph::refuse_in_recording("fill_zero");
  std::memset(raw(), 0, bytes());
}

Tensor full_like(const Tensor& x, double value) {
  const Tensor result = Tensor::full(x.shape(), value, x.dtype(), x.device());
  if (x.row_origin().is_samples()) result.storage().set_origin(RowOrigin::samples());
  return result;
}

namespace {

// The number of rows of samples depends on the rank. So another generator draws them, and the
// default one advances by the same amount on every rank.
template <class Draw>
Tensor drawn_like(std::string_view operation, const Tensor& x, const Draw& draw) {
  const Tensor numbers = Tensor::empty(x.shape(), x.dtype());
  if (x.row_origin() == RowOrigin()) {
    draw(default_generator(), numbers);
    return numbers.to(x.device());
  }
  Generator own = default_generator().split();
  draw(own, numbers);
  numbers.storage().set_origin(RowOrigin::mixed(operation));
  return numbers.to(x.device());
}

}  // namespace

Tensor rand_like(const Tensor& x) {
  return drawn_like("rand_like", x,
                    [](Generator& generator, const Tensor& to) { generator.uniform(to); });
}
Tensor randn_like(const Tensor& x) {
  return drawn_like("randn_like", x,
                    [](Generator& generator, const Tensor& to) { generator.normal(to); });
}

Tensor of_samples(const Tensor& x) {
  x.check_not_recorded("of_samples");
  const Tensor whole = x.bytes() == x.storage().bytes()
                           ? Tensor::over(x.storage(), 0, x.shape(), x.dtype())
                           : x.clone();
  whole.storage().set_origin(RowOrigin::samples());
  return whole;
}

}  // namespace lockstep
