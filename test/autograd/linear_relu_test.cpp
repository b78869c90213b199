// linear_relu: the bits of relu(linear()), and gradients that are whole wherever somebody looks.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/generator.h"
#include "support/device.h"

namespace linear_relu_cases {
namespace {

using namespace lockstep;
using test::test_device;

Tensor as(DType dtype, const Tensor& x) { return x.dtype() == dtype ? x : cast(x, dtype); }

/// A layer with relu, in one operation or in two.
using Layer = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>;

Tensor in_two(const Tensor& x, const Tensor& w, const Tensor& b) { return relu(linear(x, w, b)); }
Tensor in_one(const Tensor& x, const Tensor& w, const Tensor& b) { return linear_relu(x, w, b); }

struct Net {
  std::vector<Parameter> all;
  explicit Net(DType dtype) {  // a parameter is f32 or f64
    manual_seed(5);
    for (const auto& [in, out] : {std::pair{9, 33}, {33, 20}, {20, 7}})
      for (const Shape& shape : {Shape{out, in}, Shape{out}})
        all.emplace_back(
            as(dtype == DType::f64 ? dtype : DType::f32, Tensor::randn(shape)).to(test_device()));
    for (std::size_t i = 0; i < all.size(); ++i) all[i].set_name(std::to_string(i));
  }
};

Tensor input(DType dtype) {
  manual_seed(6);
  return as(dtype, Tensor::randn({13, 9})).to(test_device());
}

/// What a program sees: values, then gradients.
using Program = std::function<std::vector<Tensor>(const Net&, const Layer&, Tape&, DType)>;

std::vector<std::byte> bytes(const Tensor& x) {
  const Tensor here = x.detach().to(Device{});
  const auto* const from = static_cast<const std::byte*>(here.raw());
  return {from, from + static_cast<std::size_t>(here.numel()) * size_of(here.dtype())};
}

void check_same(const Program& program) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16}) {
    CAPTURE(dtype);
    const auto seen = [&](const Layer& layer) {
      const Net net(dtype);
      Tape tape;
      std::vector<Tensor> results = program(net, layer, tape, dtype);
      for (const Parameter& p : net.all)
        if (p.gradient_state() != GradientState::nothing) results.push_back(p.gradient());
      return results;
    };
    const std::vector<Tensor> one = seen(in_one), two = seen(in_two);
    REQUIRE(one.size() == two.size());
    CHECK(one.size() > 4);
    for (std::size_t i = 0; i < one.size(); ++i) {
      CAPTURE(i);
      CHECK(bytes(one[i]) == bytes(two[i]));
    }
  }
}

Tensor hidden(const Net& net, const Layer& layer, const Tensor& x, std::size_t i) {
  return layer(x, as(x.dtype(), net.all[2 * i]), as(x.dtype(), net.all[2 * i + 1]));
}

}  // namespace

TEST_CASE("linear_relu: three layers have the bits of six operations") {
  check_same([](const Net& net, const Layer& layer, Tape& tape, DType dtype) {
    const Tensor x = tape.watch(input(dtype));
    const Tensor y = hidden(net, layer, hidden(net, layer, hidden(net, layer, x, 0), 1), 2);
    tape.backward(sum(square(y)));
    return std::vector<Tensor>{y, tape.gradient(x)};
  });
}

TEST_CASE("linear_relu: a watched result has its whole gradient") {
  check_same([](const Net& net, const Layer& layer, Tape& tape, DType dtype) {
    const Tensor h = tape.watch(hidden(net, layer, input(dtype), 0));
    const Tensor y = hidden(net, layer, h, 1);
    tape.backward(sum(square(y)));
    const Tensor gradient = tape.gradient(h);
    // Where relu gave 0, what the layers behind want is not 0.
    const std::vector<float> wanted = cast(gradient.detach(), DType::f32).to_vector<float>();
    const std::vector<float> values = cast(h.detach(), DType::f32).to_vector<float>();
    int whole = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) whole += values[i] == 0 && wanted[i] != 0;
    CHECK(whole > 0);
    return std::vector<Tensor>{y, gradient};
  });
}

TEST_CASE("linear_relu: a result that is used more than once") {
  check_same([](const Net& net, const Layer& layer, Tape& tape, DType dtype) {
    const Tensor h = hidden(net, layer, input(dtype), 0);
    const Tensor y = hidden(net, layer, h, 1);
    const Tensor z = linear(h, as(dtype, net.all[2]), as(dtype, net.all[3]));  // the same weights
    tape.backward(sum(square(y)) + sum(y * z) + sum(h));
    return std::vector<Tensor>{y, z};
  });
}

TEST_CASE("linear_relu: a result that another operation uses, or that is no factor alone") {
  check_same([](const Net& net, const Layer& layer, Tape& tape, DType dtype) {
    const Tensor h = hidden(net, layer, input(dtype), 0) * 2.0;
    const Tensor y = hidden(net, layer, reshape(h, {1, 13, 33}), 1);
    tape.backward(sum(square(y)));
    return std::vector<Tensor>{y};
  });
}

TEST_CASE("linear_relu: two backwards, of the same records and of others") {
  check_same([](const Net& net, const Layer& layer, Tape& tape, DType dtype) {
    const Tensor h = hidden(net, layer, input(dtype), 0);
    const Tensor y = hidden(net, layer, h, 1);
    const Tensor first = sum(square(y)), second = sum(h) + sum(y);
    tape.backward(first, {.retain = true});
    tape.backward(first, {.retain = true});
    tape.backward(second);
    return std::vector<Tensor>{y};
  });
}

TEST_CASE("linear_relu: a value that was changed before backward is refused") {
  const Net net(DType::f32);
  Tape tape;
  const Tensor h = linear_relu(input(DType::f32), net.all[0], net.all[1]);
  const Tensor loss = sum(linear(h, net.all[2]));
  h.detach().fill(1);
  CHECK_THROWS_WITH_AS(tape.backward(loss), doctest::Contains("was changed in place"), StateError);
}

TEST_CASE("linear_relu: for products, under Autocast, the bits of what is rounded later") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    CAPTURE(dtype);
    const auto seen = [&](bool at_once) {
      const Net net(DType::f32);
      const Autocast autocast(dtype);
      Tape tape;
      const Tensor x = tape.watch(input(DType::f32));
      const auto hidden_layer = [&](const Tensor& from, std::size_t i) {
        const Parameter &w = net.all[2 * i], &b = net.all[2 * i + 1];
        const Tensor y = at_once ? linear_relu(from, w, b, true) : relu(linear(from, w, b));
        CHECK(y.dtype() == (at_once ? dtype : DType::f32));
        return y;
      };
      const Tensor y = linear(hidden_layer(hidden_layer(x, 0), 1), net.all[4], net.all[5]);
      tape.backward(sum(square(y)));
      std::vector<Tensor> results{y, tape.gradient(x)};
      for (const Parameter& p : net.all) results.push_back(p.gradient());
      return results;
    };
    const std::vector<Tensor> one = seen(true), two = seen(false);
    for (std::size_t i = 0; i < one.size(); ++i) {
      CAPTURE(i);
      CHECK(one[i].dtype() == DType::f32);
      CHECK(bytes(one[i]) == bytes(two[i]));
    }
  }
}

TEST_CASE("linear_relu: for products, without Autocast, nothing is rounded") {
  const Net net(DType::f64);
  const Tensor x = input(DType::f64);
  CHECK(bytes(linear_relu(x, net.all[0], net.all[1], true)) ==
        bytes(linear_relu(x, net.all[0], net.all[1])));
}

TEST_CASE("linear_relu: a rounded result that others use, too, keeps its dtype and its gradient") {
  const Net net(DType::f32);
  const Autocast autocast(DType::bf16);
  Tape tape;
  const Tensor h = linear_relu(input(DType::f32), net.all[0], net.all[1], true);
  tape.backward(sum(square(linear(h, net.all[2], net.all[3]))) + sum(cast(h, DType::f32)));
  for (std::size_t i = 0; i < 4; ++i) CHECK(net.all[i].gradient().dtype() == DType::f32);
  // relu gives 0 where it has given 0, and the sum 1 where it has not.
  const std::vector<float> db = net.all[1].gradient().to_vector<float>();
  CHECK(std::any_of(db.begin(), db.end(), [](float x) { return x != 0; }));
}

TEST_CASE("linear_relu: errors name it") {
  const Tensor x = input(DType::f32);
  CHECK_THROWS_WITH_AS(linear_relu(x, Tensor()), "[linear_relu] w is undefined", StateError);
  CHECK_THROWS_WITH_AS(linear_relu(x, x.view({117})),
                       doctest::Contains("[linear_relu] x must have"), ShapeError);
}

}  // namespace linear_relu_cases
