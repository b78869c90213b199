#include <algorithm>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/indexed.h"
#include "lockstep/kernels/reduce.h"

namespace lockstep {
namespace {

Tensor transposed(const Tensor& x) {
  const Tensor y = Tensor::empty(kernels::transposed(x.shape()), x.dtype(), x.device());
  kernels::transpose(x, y);
  return y;
}

}  // namespace

Tensor reshape(const Tensor& x, const Shape& shape) {
  check_defined("reshape", {{"x", x}});
  check<ShapeError>(shape.numel() == x.numel(), "[reshape] {} does not have as many elements as {}",
                    shape, x.shape());
  const auto make = [&](const auto& of) {  // of the losses of parts there may be several
    const Tensor from = of(x).detach();
    return from.numel() == shape.numel() ? from.view(shape) : from;
  };
  return record_linear("reshape", {apart(x)}, make, [](Gradients& g) { g.pass(0, g.output()); });
}

Tensor reshape(const Tensor& x, std::initializer_list<std::int64_t> sizes) {
  check_defined("reshape", {{"x", x}});
  std::vector<std::int64_t> all(sizes);
  if (const auto open = std::ranges::find(all, -1); open != all.end()) {
    *open = 1;
    const bool rows_stay = x.rank() > 0 && x.size(0) == 0 && all[0] == 0;  // as if there were one
    const auto count = [rows_stay](const Shape& of) {
      return rows_stay ? of.with(0, 1, {}).numel() : of.numel();
    };
    *open = count(x.shape()) / std::max<std::int64_t>(1, count(Shape(all)));
  }
  return reshape(x, Shape(all));
}

Tensor transpose(const Tensor& x) {
  check_defined("transpose", {{"x", x}});
  return record("transpose", transposed(x.detach()), {x.rank() == 2 ? shared(x) : apart(x)},
                [](Gradients& g) { g.pass(0, transposed(g.output())); });
}

Tensor broadcast_to(const Tensor& x, const Shape& shape) {
  check_defined("broadcast_to", {{"x", x}});
  const Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  if (is_any_floating(x.dtype()))
    kernels::broadcast_to(x, y);
  else
    kernels::masked_copy(Tensor::scalar(1, DType::u8, x.device()), x, y);
  return record("broadcast_to", y, {aligned(x, shape)}, [](Gradients& g) {
    const auto dx = g.into(0);
    kernels::sum_to(g.output(), dx.tensor, dx.accumulate);
  });
}

}  // namespace lockstep
