// How long kernels take in times of each other. No test asserts how long one takes: machines
// differ, and are busy. But a function that is not vectorized takes tens of times as long as it
// should in times of a copy, on every machine. The limits are four times what was measured, or
// more; what is measured is the fastest of many short runs, in turns; and one good turn of several
// is enough.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/support.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/formulas/elementary.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

struct Row {
  std::string name;
  double limit;  ///< in times of a copy
  std::function<void()> run;
  double fastest = 0;  ///< seconds
  bool passed = false;
};

double seconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Runs all rows in turns, and notes those that kept their limits.
void take_turns(const std::function<void()>& copy, std::vector<Row>& rows) {
  constexpr int turns = 15;
  double fastest_copy = 1;
  for (Row& row : rows)
    if (!row.passed) row.fastest = 1;
  for (int turn = 0; turn < turns; ++turn) {
    fastest_copy = std::min(fastest_copy, seconds(copy));
    for (Row& row : rows)
      if (!row.passed) row.fastest = std::min(row.fastest, seconds(row.run));
  }
  for (Row& row : rows) {
    if (row.passed) continue;
    row.fastest /= fastest_copy;
    row.passed = row.fastest <= row.limit;
  }
}

/// What the rows work on: as many elements as stay in a core's cache.
struct Operands {
  Tensor x = varied<float>({65536}, 1), dy = varied<float>({65536}, 2), positive, out;
  Operands() : positive(Tensor::empty(x.shape(), DType::f32)), out(nan<float>(x.shape())) {
    unary(Unary::abs, x, positive);
    binary(Binary::add, positive, Tensor::scalar(0.125, DType::f32), positive);
  }
};

std::vector<Row> elementwise_rows(const Operands& t) {
  std::vector<Row> rows;
  const auto of_one = [&](Unary op, double forward, double backward) {
    const std::string name{name_of(op)};
    rows.push_back({name, forward, [&t, op] { unary(op, t.positive, t.out); }});
    rows.push_back({name + " backward", backward,
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
    rows.push_back(
        {"pow " + std::to_string(exponent), 16, [&t, power = Tensor::scalar(exponent, DType::f32)] {
           binary(Binary::pow, t.positive, power, t.out);
         }});
  return rows;
}

}  // namespace

TEST_CASE("ratios: no elementwise kernel takes many times as long as a copy") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return;  // nothing is vectorized
#endif
  if (!on_cpu() || !elementary::fused) return;
  const Operands operands;
  std::vector<Row> rows = elementwise_rows(operands);
  const auto copy = [&] { scale(1, operands.x, operands.out, false); };
  for (int attempt = 0; attempt < 6; ++attempt) take_turns(copy, rows);
  for (const Row& row : rows)
    CHECK_MESSAGE(row.passed, row.name, " takes ", row.fastest, " times as long as a copy");
  if (std::getenv("LOCKSTEP_SHOW_RATIOS"))
    for (const Row& row : rows) MESSAGE(row.name, ": ", row.fastest);
}
