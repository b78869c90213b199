// What of elementwise kernels takes how many times as long as a copy.
#include "kernels/ratios.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

/// As many elements as stay in a core's cache.
template <class T>
struct Operands {
  Tensor x = varied<T>({65536}, 1), dy = varied<T>({65536}, 2);
  Tensor positive = nan<T>(x.shape()), out = nan<T>(x.shape());
  Operands() {
    unary(Unary::abs, x, positive);
    binary(Binary::add, positive, Tensor::scalar(0.125, x.dtype()), positive);
  }
};

template <class T>
std::vector<Timed> elementwise_rows(const Operands<T>& t) {
  const double twice_as_exact = sizeof(T) == 8 ? 4 : 1;
  std::vector<Timed> rows;
  const auto of_one = [&](Unary op, double forward, double backward) {
    const std::string name{name_of(op)};
    rows.push_back({name, forward * twice_as_exact, [&t, op] { unary(op, t.positive, t.out); }});
    rows.push_back({name + " backward", backward * twice_as_exact,
                    [&t, op] { unary_backward(op, t.dy, t.positive, t.out, false); }});
  };
  for (const Unary op : {Unary::neg, Unary::square, Unary::abs, Unary::sign, Unary::floor,
                         Unary::round, Unary::relu, Unary::reciprocal})
    of_one(op, 8, 8);
  for (const Unary op : {Unary::sqrt, Unary::rsqrt}) of_one(op, 16, 16);
  for (const Unary op :
       {Unary::exp, Unary::expm1, Unary::log, Unary::log1p, Unary::sigmoid, Unary::tanh})
    of_one(op, 32, 16);
  of_one(Unary::elu, 32, 32);
  for (const Unary op : {Unary::silu, Unary::gelu, Unary::gelu_tanh, Unary::sin, Unary::cos})
    of_one(op, 60, 60);
  of_one(Unary::erf, 80, 40);
  of_one(Unary::softplus, 80, 40);
  for (const Binary op :
       {Binary::add, Binary::sub, Binary::mul, Binary::div, Binary::maximum, Binary::minimum})
    rows.push_back({std::string(name_of(op)), 8, [&t, op] { binary(op, t.x, t.positive, t.out); }});
  for (const double exponent : {2.0, 3.0, 4.0, 1.0, 0.5, -0.5, -1.0, -1.5, -2.0})
    rows.push_back({"pow " + std::to_string(exponent), 16,
                    [&t, power = Tensor::scalar(exponent, dtype_of<T>())] {
                      binary(Binary::pow, t.positive, power, t.out);
                    }});
  return rows;
}

}  // namespace

TEST_CASE_TEMPLATE("ratios: no elementwise kernel takes many times as long as a copy", T, float,
                   double) {
  if (!worth_timing()) return;
  const Operands<T> operands;
  check_ratios(operands.x, operands.out, elementwise_rows(operands));
}
