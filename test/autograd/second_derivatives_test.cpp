// Gradients of gradients are not computed: where one would be missing, recording is an error.

#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/ops.h"
#include "support/op_table.h"

using namespace lockstep;

namespace {

constexpr const char* refused = "second derivatives are not computed";

/// `values` as a gradient that `tape` has computed.
Tensor as_gradient(Tape& tape, const Tensor& values) {
  const Tensor w = tape.watch(zeros_like(values));
  tape.backward(sum(w * values));
  return tape.gradient(w);
}

Parameter weight(std::initializer_list<double> values) {
  return Parameter(Tensor::from(values), "w");
}

template <class F>
bool is_refused(const F& f) {
  try {
    f();
  } catch (const StateError& error) {
    return std::string(error.what()).find(refused) != std::string::npos;
  }
  return false;
}

}  // namespace

TEST_CASE("a penalty on the norm of a gradient is refused, not left out") {
  const Parameter w = weight({1, 2, 3});
  Tape tape;
  const Tensor x = tape.watch(Tensor::from({0.5, -1.0, 2.0}));
  const Tensor loss = sum(square(x * w));
  tape.backward(loss, {.retain = true});
  CHECK(is_refused([&] { loss + 10.0 * square(norm(tape.gradient(x)) - 1.0); }));
  CHECK(is_refused([&] { loss + mean(abs(w.gradient())); }));
  CHECK(is_refused([&] { loss + sum(w.gradient_slot()); }));
  CHECK(is_refused([&] { mul(x, tape.gradient(x)); }));
  CHECK(is_refused([&] { x % tape.gradient(x); }));
  CHECK_THROWS_WITH_AS(w * tape.gradient(x),
                       doctest::Contains("[mul] an operand was made of a gradient"), StateError);
  // As a constant it is welcome.
  CHECK_NOTHROW(loss + 10.0 * square(norm(tape.gradient(x).detach()) - 1.0));
  CHECK_NOTHROW(loss + norm(tape.gradient(x)).item());
}

TEST_CASE("operations hand on that their operand is a gradient") {
  for (const OpCase& op : op_table()) {
    CAPTURE(op.name);
    for (const auto& shapes : op.shapes) {
      CAPTURE(title(op, shapes));
      const std::vector<Tensor> values = operands(op, shapes, DType::f64, {});
      for (std::size_t i = 0; i < values.size(); ++i) {
        CAPTURE(i);
        Tape tape;
        std::vector<Tensor> constants = values, recorded;
        constants[i] = as_gradient(tape, values[i]);
        for (const Tensor& value : values) recorded.push_back(tape.watch(value));
        recorded[i] = constants[i];
        const Tensor other = tape.watch(Tensor::scalar(1, DType::f64));
        const bool steps = op.name == "sign" || op.name == "floor" || op.name == "round";
        CHECK(is_refused([&] { sum(op.function(constants)) + other; }) == !steps);
        if (values.size() > 1) CHECK(is_refused([&] { op.function(recorded); }));
      }
    }
  }
}

TEST_CASE("copies, views and rows of a gradient are gradients") {
  const Tensor values = Tensor::from({{1.0, 2.0}, {3.0, 4.0}});
  Tape tape;
  const Tensor g = as_gradient(tape, values), w = tape.watch(Tensor::scalar(1, DType::f64));
  for (const Tensor& same : {g, g.clone(), g.to(Device{}), g.view({4}), g.slice(0, 1), g.rows()[1]})
    CHECK(is_refused([&] { mul(w, same); }));
  CHECK_NOTHROW(w * g.detach());
}

TEST_CASE("what is the same for all values near it is a constant: sign, floor, a comparison") {
  Tape tape;
  const Tensor x = tape.watch(Tensor::from({0.5, -1.0}));
  const Tensor g = as_gradient(tape, Tensor::from({3.0, -4.0}));
  const Tensor near = x + 0.1 * sign(g);  // the fast gradient sign method
  CHECK(near.detach().to_vector<double>() == std::vector<double>{0.6, -1.1});
  CHECK_NOTHROW(x * floor(g));
  CHECK_NOTHROW(x * round(g));
  CHECK_NOTHROW(x * cast(g > 0, DType::f64));
  const auto straight_through = [](const Tensor& v) {  // whose derivative is 1
    return record("round", round(v.detach()), {&v}, [](Gradients& to) { to.pass(0, to.output()); });
  };
  CHECK(is_refused([&] { (void)(x * straight_through(g)); }));
}

TEST_CASE("a gradient is a constant on another tape, and where nothing is recorded") {
  const Parameter w = weight({1, 2});
  Tensor g, penalty;
  {
    Tape tape;
    const Tensor x = tape.watch(Tensor::from({3.0, 4.0}));
    tape.backward(sum(square(x * w)));
    g = tape.gradient(x);
    penalty = sum(square(g));
    CHECK(penalty.item() == doctest::Approx(6 * 6 + 32 * 32));
    Tape inner;
    inner.backward(sum(w * g));
    CHECK(is_refused([&] {
      const Tensor of_outer = g * 2.0;  // not recorded, and on the inner tape
      tape.record("identity", x.detach(), std::vector<Operand>{&x, &of_outer}, [](auto&) {});
    }));
  }
  w.zero_grad();
  Tape later;
  later.backward(sum(w * g) + penalty);
  CHECK(w.gradient().to_vector<double>() == std::vector<double>{6, 32});
}

TEST_CASE("a block that is recomputed refuses gradients of the tape around it") {
  const Parameter w = weight({1, 2});
  Tape tape;
  const Tensor x = tape.watch(Tensor::from({3.0, 4.0}));
  const Tensor g = as_gradient(tape, Tensor::from({1.0, 1.0}));
  const auto block = [&](const Tensor& a, const Tensor& b) { return a * w * b; };
  CHECK(is_refused([&] { checkpoint(block, x, g); }));
  CHECK(is_refused([&] { checkpoint([&](const Tensor& a) { return block(a, g); }, x); }));
  CHECK(is_refused([&] {
    checkpoint(
        [&](const Tensor& a) {
          return checkpoint([&](const Tensor& b) { return block(b, g); }, a);
        },
        x);
  }));
  CHECK_NOTHROW(checkpoint(block, x, g.detach()));
}
