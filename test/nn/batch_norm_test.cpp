// BatchNorm on one rank: PyTorch's numbers (test/reference/make_batch_norm_layer.py), empty
// batches, errors, recomputed and recorded steps.

#include "lockstep/nn/batch_norm.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/nn/layers.h"
#include "nn/batch_norm_support.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Relative to the largest value, or to 1: operands are of that size, and of two rows, the
/// gradients nearly cancel.
void check_close(const std::string& name, const Tensor& actual, const Values& expected,
                 double tolerance) {
  INFO(name);
  CHECK(distance(values_of(actual), expected, 1) <= tolerance);
}

const nlohmann::json& pytorch() {
  static const nlohmann::json numbers =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/batch_norm_layer.json"));
  return numbers;
}

nn::BatchNorm layer_of(const nlohmann::json& entry, DType dtype) {
  nn::BatchNormOptions options{.eps = entry["eps"],
                               .momentum = std::nullopt,
                               .affine = entry["affine"],
                               .track_running_stats = entry["track"],
                               .dtype = dtype};
  if (!entry["momentum"].is_null()) options.momentum = entry["momentum"].get<double>();
  nn::BatchNorm layer(pytorch()["channels"], options);
  layer.to(test_device());
  if (options.affine) {
    const Shape channels = layer.weight.value().shape();
    layer.weight.value().copy_from(of_values(channels, entry["weight"], dtype));
    layer.bias.value().copy_from(of_values(channels, entry["bias"], dtype));
  }
  return layer;
}

/// One forward and backward; what the reference has is compared.
void check_pass(nn::BatchNorm& layer, const nlohmann::json& pass, DType dtype) {
  const double tolerance = dtype == DType::f32 ? 2e-6 : 1e-13;
  const Shape shape(pass["shape"].get<std::vector<std::int64_t>>());
  for (const Parameter& parameter : layer.parameters()) parameter.zero_grad();
  Tape tape;
  const Tensor x = tape.watch(of_values(shape, pass["x"], dtype));
  const Tensor y = layer(x);
  CHECK(y.shape() == shape);
  tape.backward(sum(y * of_values(shape, pass["dy"], dtype)));
  check_close("y", y.detach(), pass["y"], tolerance);
  check_close("dx", tape.gradient(x), pass["dx"], tolerance);
  if (layer.weight.defined()) {
    check_close("dweight", layer.weight.gradient(), pass["dweight"], tolerance);
    check_close("dbias", layer.bias.gradient(), pass["dbias"], tolerance);
  }
  if (layer.running_mean.defined()) {
    check_close("running_mean", layer.running_mean, pass["running_mean"], tolerance);
    check_close("running_var", layer.running_var, pass["running_var"], tolerance);
  }
}

Tensor ramp(const Shape& shape, DType dtype = DType::f32) {
  Values values;
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    values.push_back(std::sin(static_cast<double>(1 + 3 * i)));
  return of_values(shape, values, dtype);
}

}  // namespace

TEST_CASE_TEMPLATE("BatchNorm is PyTorch's, over three training steps and in evaluation", T, float,
                   double) {
  REQUIRE(pytorch()["cases"].size() == 7);
  for (const auto& entry : pytorch()["cases"]) {
    CAPTURE(entry["momentum"].dump());
    CAPTURE(entry["steps"][0]["shape"].dump());
    nn::BatchNorm layer = layer_of(entry, dtype_of<T>());
    std::int64_t steps = 0;
    for (const auto& pass : entry["steps"]) {
      check_pass(layer, pass, dtype_of<T>());
      ++steps;
      if (layer.num_batches_tracked.defined())
        CHECK(layer.num_batches_tracked.item() == static_cast<double>(steps));
    }
    layer.eval();
    check_pass(layer, entry["evaluation"], dtype_of<T>());
  }
}

TEST_CASE("parameters and buffers have PyTorch's names, and are there where they are used") {
  nn::Sequential full{nn::BatchNorm(5)};
  std::vector<std::string> names;
  for (const auto& [name, value] : full.state_dict()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"0.bias", "0.num_batches_tracked", "0.running_mean",
                                          "0.running_var", "0.weight"});
  CHECK(full.state_dict().at("0.num_batches_tracked").shape() == Shape{});
  CHECK(full.state_dict().at("0.running_var").to_vector<float>() == std::vector<float>(5, 1));
  CHECK(nn::BatchNorm(5, {.affine = false}).state_dict().size() == 3);
  CHECK(nn::BatchNorm(5, {.track_running_stats = false}).state_dict().size() == 2);
}

TEST_CASE("one value per channel has no variance: an error wherever the batch's would be used") {
  const char* const message =
      "layer BatchNorm(3): [BatchNorm] a batch needs more than 1 value per channel, got 1, shape "
      "(1, 3)";
  nn::BatchNorm layer(3), stateless(3, {.track_running_stats = false});
  CHECK_THROWS_WITH_AS(layer(ramp({1, 3}).to({})), message, ShapeError);
  CHECK_THROWS_AS(layer(ramp({1, 3, 1, 1}).to({})), ShapeError);
  CHECK(layer.num_batches_tracked.item() == 0);
  CHECK_NOTHROW(layer(ramp({1, 3, 2}).to({})));
  layer.eval();
  stateless.eval();
  CHECK_NOTHROW(layer(ramp({1, 3}).to({})));
  CHECK_THROWS_WITH_AS(stateless(ramp({1, 3}).to({})), message, ShapeError);
}

TEST_CASE("an empty batch leaves statistics and gradients as they are") {
  for (const Shape& shape : {Shape{0, 3}, Shape{0, 3, 4}, Shape{2, 3, 0}}) {
    CAPTURE(shape.to_string());
    nn::BatchNorm layer(3, {.momentum = std::nullopt});
    layer.to(test_device());
    layer(ramp({4, 3}));
    const auto mean = layer.running_mean.to_vector<float>();
    Tape tape;
    const Tensor y = layer(ramp(shape));
    CHECK(y.shape() == shape);
    tape.backward(sum(y));
    CHECK(layer.weight.gradient().to_vector<float>() == std::vector<float>(3, 0));
    CHECK(layer.running_mean.to_vector<float>() == mean);
    CHECK(layer.num_batches_tracked.item() == 1);
    layer.eval();
    CHECK(layer(ramp(shape)).shape() == shape);
  }
}

TEST_CASE("what does not fit is refused") {
  nn::BatchNorm layer(3);
  CHECK_THROWS_WITH_AS(
      layer(Tensor::zeros({2, 4})),
      "layer BatchNorm(3): [BatchNorm] expected (N, 3) or (N, 3, ...), got shape (2, 4)",
      ShapeError);
  CHECK_THROWS_AS(layer(Tensor::zeros({3})), ShapeError);
  CHECK_THROWS_AS(layer(Tensor::zeros({2, 3}, DType::f64)), DTypeError);
  CHECK_THROWS_AS(nn::BatchNorm(0), ShapeError);
  CHECK_THROWS_WITH_AS(nn::BatchNorm(3, {.eps = -1}), doctest::Contains("-1"), UsageError);
  CHECK_THROWS_WITH_AS(nn::BatchNorm(3, {.momentum = 1.5}), doctest::Contains("1.5"), UsageError);
}

TEST_CASE("a recomputed block counts its batch once") {
  nn::BatchNorm plain(3), recomputed(3);
  const Tensor x = ramp({5, 3}).to({});
  plain(x);
  Tape tape;
  const Tensor y = checkpoint([&](const Tensor& in) { return recomputed(in); }, tape.watch(x));
  tape.backward(sum(y * y));
  CHECK(recomputed.num_batches_tracked.item() == 1);
  CHECK(recomputed.running_mean.to_vector<float>() == plain.running_mean.to_vector<float>());
}

TEST_CASE("a recorded step with BatchNorm: every replay is counted") {
  const auto train = [](bool recorded) {
    nn::BatchNorm layer(3);
    layer.to(test_device());
    const Tensor x = Tensor::zeros({5, 3}, DType::f32, test_device());
    const auto step = [&] {
      for (const Parameter& parameter : layer.parameters()) parameter.zero_grad();
      Tape tape;
      const Tensor y = layer(x);
      tape.backward(sum(y * y));
    };
    StepGraph graph(step, test_device());
    for (int k = 0; k < 5; ++k) {
      x.copy_from(scale(ramp({5, 3}), 1 + k));
      if (recorded)
        graph();
      else
        step();
    }
    Values result = values_of(layer.running_var);
    for (const double value : values_of(layer.weight.gradient())) result.push_back(value);
    result.push_back(layer.num_batches_tracked.item());
    return result;
  };
  const Values plain = train(false), recorded = train(true);
  CHECK(plain.back() == 5);
  CHECK(recorded == plain);
}

TEST_CASE("a batch of another dtype is refused by name, and leaves the statistics as they were") {
  for (const DType dtype : {DType::f64, DType::bf16, DType::f16}) {
    nn::BatchNorm layer(2);
    const Tensor x = cast(Tensor::of<float>({2, 2}, {1, 2, 3, 5}), dtype);
    const std::string text =
        fmt::format("layer BatchNorm(2): [batch_norm] x is {}, but weight is f32", dtype);
    CHECK_THROWS_WITH_AS(layer(x), doctest::Contains(text.c_str()), DTypeError);
    CHECK(layer.num_batches_tracked.item() == 0);
    CHECK(layer.running_mean.to_vector<float>() == std::vector<float>{0, 0});
    CHECK(layer.running_var.to_vector<float>() == std::vector<float>{1, 1});
  }
}
