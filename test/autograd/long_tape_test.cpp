// One tape for many backwards: it does not grow, and what was used up stays an error.

#include <doctest/doctest.h>

#include <vector>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/memory.h"

using namespace lockstep;

namespace {

constexpr const char* used_up = "already run backward";

struct Net {
  Parameter a{Tensor::from({{0.5, -1.0, 2.0}, {1.5, 0.25, -0.75}}), "a"};
  Parameter b{Tensor::from({{1.0, 2.0}, {-0.5, 0.5}}), "b"};

  Tensor forward(const Tensor& x) const { return matmul(tanh(matmul(x, transpose(a))), b); }
  void step() const {
    for (const Parameter& p : {a, b}) {
      if (p.gradient().defined()) p.value() -= p.gradient() * 0.01;
      p.zero_grad();
    }
  }
};

Tensor input(int step) {
  const Tensor x = Tensor::empty({4, 3}, DType::f64);
  for (int i = 0; i < 12; ++i) x.data<double>()[i] = (i * 7 + step * 5) % 11 - 5;
  return x;
}

std::size_t live() { return memory::statistics().live_bytes; }

/// Steps of every kind: a loss, a second one that shares a part of it, metrics before and after.
void train_step(Tape& tape, const Net& net, int step) {
  const Tensor y = net.forward(input(step));
  const Tensor loss = mean(square(y)), half = mean(abs(y)), aside = mean(net.forward(input(3)));
  tape.backward(loss, {.retain = true});
  const Tensor between = sum(y);
  tape.backward(loss + half);
  CHECK(sum(y).item() == between.item());
  CHECK_THROWS_WITH_AS(tape.backward(between), doctest::Contains(used_up), StateError);
  tape.backward(aside);
  net.step();
}

}  // namespace

TEST_CASE("a tape outside of the loop trains as one inside of it, and does not grow") {
  const Net one, each;
  Tape outer;
  std::size_t after_ten = 0;
  for (int step = 0; step < 60; ++step) {
    train_step(outer, one, step);
    if (step == 10) after_ten = live();
    if (step > 10) CHECK(live() == after_ten);
    Tape inner;
    train_step(inner, each, step);
  }
  CHECK(one.a.value().to_vector<double>() == each.a.value().to_vector<double>());
  CHECK(one.b.value().to_vector<double>() == each.b.value().to_vector<double>());
}

TEST_CASE("what the loss did not reach stays, for as many backwards as there are") {
  const Net net;
  Tape tape;
  const Tensor x = tape.watch(input(0));
  const Tensor early = sum(square(net.forward(x)));
  for (int step = 1; step < 20; ++step) {
    tape.backward(sum(net.forward(input(step))));
    const Tensor kept = sum(x * 2.0);  // of a watched tensor, which each step can use
    tape.backward(kept);
    CHECK(tape.gradient(x).item({1, 1}) == 2);
  }
  net.a.zero_grad();
  net.b.zero_grad();
  tape.backward(early);
  const std::vector<double> late = net.a.gradient().to_vector<double>(),
                            of_x = tape.gradient(x).to_vector<double>();
  net.a.zero_grad();
  net.b.zero_grad();
  Tape fresh;
  const Tensor again = fresh.watch(input(0));
  fresh.backward(sum(square(net.forward(again))));
  CHECK(late == net.a.gradient().to_vector<double>());
  CHECK(of_x == fresh.gradient(again).to_vector<double>());
}

TEST_CASE("handles to what was used up: values stay, and a backward is refused at any time") {
  const Net net;
  Tape tape;
  const Tensor y = net.forward(input(0)), loss = mean(square(y)), before = sum(y);
  const double value = before.item();
  tape.backward(loss);
  const auto refused = [&](const Tensor& again) {
    CHECK_THROWS_WITH_AS(tape.backward(again), doctest::Contains(used_up), StateError);
  };
  CHECK_THROWS_WITH_AS(tape.backward(loss), doctest::Contains("'mean' was already run backward"),
                       StateError);
  std::vector<Tensor> handles = {loss,
                                 before,
                                 sum(y),
                                 sum(y) + sum(net.a),
                                 mean(before * 2.0),
                                 checkpoint([](const Tensor& z) { return sum(z); }, y)};
  const Tensor labels = Tensor::from({0, 1, 1, 0});
  const auto smooth = [&] { return cross_entropy(y, labels, {.label_smoothing = 0.1}); };
  handles.push_back(smooth());
  for (const Tensor& handle : handles) refused(handle);
  for (int step = 1; step < 4; ++step) {  // their memory is used again
    tape.backward(sum(net.forward(input(step))));
    for (const Tensor& handle : handles) refused(handle);
    handles.push_back(sum(y) - loss);
    handles.push_back(smooth());
    refused(sum(net.b) + handles.back());
    CHECK(sum(y).item() == value);
    CHECK_THROWS_WITH_AS((void)tape.parameters_of(loss), doctest::Contains(used_up), StateError);
  }
  net.a.zero_grad();
  tape.backward(sum(net.a) * 3.0);  // nothing of it is left behind
  CHECK(net.a.gradient().to_vector<double>() == std::vector<double>(6, 3.0));
}

TEST_CASE("a backward that throws leaves a tape that goes on") {
  const Net net;
  Tape tape;
  for (int step = 0; step < 5; ++step) {
    const Tensor y = net.forward(input(step));
    const Tensor bad = record("bad", sum(y).detach(), {&y},
                              [](Gradients&) { fail<DataError>("[bad] on purpose"); });
    CHECK_THROWS_AS(tape.backward(bad), DataError);
    CHECK_THROWS_AS(tape.backward(sum(y) * 2.0 + bad), Error);
    net.a.zero_grad();
    tape.backward(sum(net.a));
    CHECK(net.a.gradient().to_vector<double>() == std::vector<double>(6, 1.0));
  }
}
