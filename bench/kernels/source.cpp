#include "source.h"

#include <algorithm>

#include "lockstep/kernels/elementwise.h"

namespace bench {

using namespace lockstep;

namespace {
/// Of numbers that are drawn for one tensor. A longer one has them again and again: to draw all of
/// them on the host would take longer than to time a GPU's kernel. It is odd, so that rows differ.
constexpr std::int64_t period = (1 << 18) + 3;
}  // namespace

template <class Draw>
Tensor Source::drawn(const Shape& shape, DType dtype, const Draw& draw) {
  const std::int64_t n = shape.numel();
  const Tensor numbers = Tensor::empty({std::min(n, period)}, dtype);
  Generator generator(++seed_);
  draw(generator, numbers);
  const Tensor here = numbers.to(device_), result = empty({n}, dtype);
  for (std::int64_t begin = 0; begin < n; begin += period) {
    const std::int64_t end = std::min(n, begin + period);
    result.slice(begin, end).copy_from(here.slice(0, end - begin));
  }
  return result.view(shape);
}

Tensor Source::normal(const Shape& shape, DType dtype) {
  const bool wide = dtype == DType::f32 || dtype == DType::f64;
  const Tensor values = drawn(shape, wide ? dtype : DType::f32,
                              [](Generator& numbers, const Tensor& to) { numbers.normal(to); });
  if (wide) return values;
  const Tensor result = empty(shape, dtype);
  kernels::cast(values, result);
  return result;
}

Tensor Source::uniform(const Shape& shape, double low, double high) {
  return drawn(shape, DType::f32,
               [=](Generator& numbers, const Tensor& to) { numbers.uniform(to, low, high); });
}

Tensor Source::labels(std::int64_t n, std::int64_t classes) {
  const Tensor values = Tensor::empty({n}, DType::i64);
  Generator(++seed_).randint(0, classes, values);
  return values.to(device_);
}

Tensor Source::empty(const Shape& shape, DType dtype) const {
  return Tensor::empty(shape, dtype, device_);
}

}  // namespace bench
