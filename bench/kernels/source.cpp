#include "source.h"

#include "lockstep/core/generator.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/random.h"

namespace bench {

using namespace lockstep;

Tensor Source::normal(const Shape& shape, DType dtype) {
  const bool drawn = dtype == DType::f32 || dtype == DType::f64;
  const Tensor values = empty(shape, drawn ? dtype : DType::f32);
  kernels::normal({.seed = ++seed_}, values, 0, 1);
  if (drawn) return values;
  const Tensor result = empty(shape, dtype);
  kernels::cast(values, result);
  return result;
}

Tensor Source::uniform(const Shape& shape, double low, double high) {
  const Tensor values = empty(shape);
  kernels::uniform({.seed = ++seed_}, values, low, high);
  return values;
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
