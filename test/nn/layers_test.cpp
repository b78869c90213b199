// Layers and initializers beside PyTorch's (test/reference/make_layers.py), and what a model tells
// of itself: its parts, its names, its copies.

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/lockstep.h"
#include "support/device.h"

using namespace lockstep;
using namespace lockstep::test;
using nlohmann::json;

namespace {

const json& reference_rows(const char* part) {
  static const json rows = [] {
    std::ifstream file(LOCKSTEP_TEST_DATA "/layers.json");
    REQUIRE(file);
    return json::parse(file);
  }();
  return rows.at(part);
}

Shape shape_of(const json& numbers) {
  return Shape(numbers.at("shape").get<std::vector<std::int64_t>>());
}

template <class T>
Tensor tensor_of(const json& numbers) {
  return Tensor::of<T>(shape_of(numbers), numbers.at("values").get<std::vector<T>>());
}

template <class T>
void check_near(const Tensor& tensor, const json& expected, double tolerance) {
  REQUIRE(tensor.shape() == shape_of(expected));
  const std::vector<T> values = tensor.to_vector<T>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double other = expected.at("values")[i];
    CAPTURE(i);
    CHECK(static_cast<double>(values[i]) ==
          doctest::Approx(other).epsilon(tolerance).scale(1 + std::abs(other)));
  }
}

std::unique_ptr<nn::Module> layer_named(const std::string& name) {
  const DType d = DType::f64;
  if (name == "LayerNorm") return std::make_unique<nn::LayerNorm>(4, 1e-5, d);
  if (name == "RMSNorm") return std::make_unique<nn::RMSNorm>(4, 1e-6, d);
  if (name == "GroupNorm") return std::make_unique<nn::GroupNorm>(2, 4, 1e-5, d);
  if (name == "Embedding") return std::make_unique<nn::Embedding>(5, 3, d);
  if (name == "GELU") return std::make_unique<nn::GELU>();
  if (name == "GELUTanh") return std::make_unique<nn::GELUTanh>();
  if (name == "SiLU") return std::make_unique<nn::SiLU>();
  if (name == "Sigmoid") return std::make_unique<nn::Sigmoid>();
  if (name == "LogSigmoid") return std::make_unique<nn::LogSigmoid>();
  if (name == "Softplus") return std::make_unique<nn::Softplus>();
  if (name == "Tanh") return std::make_unique<nn::Tanh>();
  if (name == "ELU") return std::make_unique<nn::ELU>();
  if (name == "LeakyReLU") return std::make_unique<nn::LeakyReLU>(0.2);
  if (name == "Softmax") return std::make_unique<nn::Softmax>();
  if (name == "Flatten") return std::make_unique<nn::Flatten>();
  REQUIRE(name == "Identity");
  return std::make_unique<nn::Identity>();
}

const std::map<std::string, void (*)(const Tensor&)> initializers = {
    {"uniform", [](const Tensor& w) { nn::init::uniform(w, -2, 3); }},
    {"normal", [](const Tensor& w) { nn::init::normal(w, 1, 2); }},
    {"kaiming_uniform", [](const Tensor& w) { nn::init::kaiming_uniform(w); }},
    {"kaiming_uniform_out",
     [](const Tensor& w) {
       nn::init::kaiming_uniform(w, nn::init::relu_gain(0.2), nn::init::Fan::out);
     }},
    {"kaiming_normal", [](const Tensor& w) { nn::init::kaiming_normal(w); }},
    {"xavier_uniform", [](const Tensor& w) { nn::init::xavier_uniform(w, 5.0 / 3); }},
    {"xavier_normal", [](const Tensor& w) { nn::init::xavier_normal(w); }},
    {"orthogonal", [](const Tensor& w) { nn::init::orthogonal(w, 2); }},
    {"Embedding", [](const Tensor& w) { w.copy_from(nn::Embedding(5, 3).weight.value()); }},
    {"Linear",
     [](const Tensor& w) {
       nn::Embedding before(5, 3);  // it draws first, there too
       w.copy_from(nn::Linear(4, 3).weight.value());
     }},
};

struct GeluBlock : nn::Module {
  explicit GeluBlock(std::int64_t width) : first(width, width), width_(width) {}
  Tensor forward(const Tensor& x) override { return gelu(first(x)); }
  void visit(nn::Visitor& p) override { p("first", first); }
  Another make_another() const override { return std::make_unique<GeluBlock>(width_); }
  nn::Linear first;

 private:
  std::int64_t width_;
};

struct Secretive : nn::Module {
  Tensor forward(const Tensor& x) override { return matmul(x, x); }
};

nn::Sequential example() {
  nn::Sequential model{nn::Linear(6, 4),  nn::BatchNorm(4), nn::Residual(GeluBlock(4)),
                       nn::Dropout(0.25), nn::LayerNorm(4), nn::Linear(4, 3, false)};
  return model;
}

template <class M>
concept Copied = std::copy_constructible<M> || std::is_copy_assignable_v<M>;
static_assert(!Copied<nn::Linear> && !Copied<nn::Sequential> && !Copied<GeluBlock>);
static_assert(std::movable<nn::Linear> && std::movable<nn::Sequential> && std::movable<GeluBlock>);

}  // namespace

TEST_CASE("layers and their gradients are PyTorch's") {
  for (const json& row : reference_rows("layers")) {
    const std::string name = row.at("name");
    CAPTURE(name);
    CAPTURE(row.at("x").at("shape").dump());
    const std::unique_ptr<nn::Module> layer = layer_named(name);
    const std::vector<Parameter> parameters = layer->parameters();
    REQUIRE(parameters.size() == row.at("parameters").size());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].value().copy_from(tensor_of<double>(row.at("parameters")[i]));
    layer->to(test_device());
    Tape tape;
    const bool index = row.at("dx").is_null();
    const Tensor x =
        here(index ? tensor_of<std::int64_t>(row.at("x")) : tensor_of<double>(row.at("x")));
    const Tensor input = index ? x : tape.watch(x);
    const Tensor y = (*layer)(input);
    check_near<double>(y, row.at("y"), 1e-12);
    tape.backward(sum(y * here(tensor_of<double>(row.at("w")))));
    for (std::size_t i = 0; i < parameters.size(); ++i)
      check_near<double>(parameters[i].gradient(), row.at("gradients")[i], 1e-12);
    if (!index) check_near<double>(tape.gradient(input), row.at("dx"), 1e-12);
  }
}

TEST_CASE("initializers draw PyTorch's numbers, on every device") {
  for (const json& row : reference_rows("initializers")) {
    const std::string name = row.at("name");
    CAPTURE(name);
    CAPTURE(row.at("w").at("shape").dump());
    const bool single = row.at("dtype") == "f32";
    CAPTURE(single);
    manual_seed(7);
    const Tensor w =
        Tensor::zeros(shape_of(row.at("w")), single ? DType::f32 : DType::f64, test_device());
    initializers.at(name)(w);
    if (single)
      check_near<float>(w, row.at("w"), 2e-6);
    else
      check_near<double>(w, row.at("w"), 1e-12);
  }
}

TEST_CASE("initializers refuse what has no fans") {
  CHECK_THROWS_WITH_AS(nn::init::xavier_normal(Tensor::zeros({3})),
                       "[init] fans of a tensor of shape (3,): two dimensions are needed",
                       ShapeError);
  CHECK_THROWS_AS(nn::init::orthogonal(Tensor::zeros({0, 3})), ShapeError);
  CHECK_THROWS_AS(nn::init::orthogonal(Tensor::zeros({2, 3}, DType::i64)), DTypeError);
}

TEST_CASE("an error of forward begins with the innermost layer") {
  nn::Sequential model{nn::Linear(6, 4), nn::Residual(GeluBlock(5))};
  (void)model.parameters();  // which tells the parts their paths, as an optimizer's do
  CHECK_THROWS_WITH_AS(
      model(Tensor::zeros({2, 7})),
      "layer '0' Linear(6 -> 4): [linear] inner dimensions differ: (2, 7) x (4, 6)^T", ShapeError);
  CHECK_THROWS_WITH_AS(model(Tensor::zeros({2, 6})),
                       doctest::Contains("layer '1.inner.first' Linear(5 -> 5): [linear] "),
                       ShapeError);
  CHECK_THROWS_WITH_AS(model(Tensor::zeros({2, 6}, DType::f64)),
                       doctest::Contains("layer '0' Linear(6 -> 4): [linear] "), DTypeError);
  Secretive alone;
  CHECK_THROWS_WITH_AS(alone(Tensor::zeros({2, 3})), doctest::Contains("layer Secretive: [matmul]"),
                       ShapeError);
}

TEST_CASE("a model prints its parts") {
  CHECK(example().to_string() ==
        "Sequential: 76 parameters\n"
        "  0              Linear(6 -> 4)                28\n"
        "  1              BatchNorm(4)                   8\n"
        "  2              Residual\n"
        "  2.inner        GeluBlock\n"
        "  2.inner.first  Linear(4 -> 4)                20\n"
        "  3              Dropout(0.25)\n"
        "  4              LayerNorm(4)                   8\n"
        "  5              Linear(4 -> 3, without bias)  12\n");
}

TEST_CASE("the parts of a Sequential are found by index, by path and one after another") {
  nn::Sequential model = example();
  CHECK(model.size() == 6);
  CHECK(model[3].describe() == "Dropout(0.25)");
  CHECK_THROWS_WITH_AS(model[6], "[Sequential] module 6 of 6", UsageError);
  std::vector<std::string> kinds;
  for (nn::Module& part : model) kinds.push_back(part.describe());
  CHECK(kinds.front() == "Linear(6 -> 4)");
  CHECK(kinds.size() == 6);
  CHECK(model.at<nn::Linear>("2.inner.first").weight.value().shape() == Shape{4, 4});
  CHECK_THROWS_WITH_AS(model.at("2.outer"),
                       doctest::Contains("[at] Sequential has no part '2.outer'; it has '0' '1'"),
                       UsageError);
  CHECK_THROWS_WITH_AS(model.at<nn::Linear>("1"),
                       "[at] part '1' is a BatchNorm(4), not what was asked for", UsageError);
  model.insert(1, nn::Tanh());
  model.append(nn::Softmax());
  CHECK(model[1].describe() == "tanh");
  CHECK(model[2].describe() == "BatchNorm(4)");
  CHECK(model.size() == 8);
  CHECK_THROWS_AS(model.insert(9, nn::Tanh()), UsageError);
}

TEST_CASE("a clone has the same values in memory of its own, flags, modes and device") {
  manual_seed(3);
  nn::Sequential model = example();
  model.to(test_device());
  model(here(Tensor::randn({5, 6})));  // moves the running statistics
  model.at<nn::Linear>("0").weight.set_requires_grad(false);
  model[1].eval();
  const double next = [] {
    Generator generator = default_generator();
    const Tensor x = Tensor::empty({1});
    generator.uniform(x);
    return x.item();
  }();
  nn::Sequential copy = nn::clone(model);
  CHECK(Tensor::rand({1}).item() == next);  // the stream is where it was
  const auto ours = model.state_dict(), theirs = copy.state_dict();
  REQUIRE(ours.size() == theirs.size());
  for (const auto& [name, value] : ours) {
    const Tensor& other = theirs.at(name);
    CHECK(other.raw() != value.raw());
    CHECK(other.device() == value.device());
    CHECK(all(other == value).item() == 1);
  }
  CHECK_FALSE(copy.parameters()[0].requires_grad());
  CHECK(copy.parameters()[1].requires_grad());
  CHECK(copy[0].training());
  CHECK_FALSE(copy[1].training());
  model.parameters()[0].value().fill(5);
  CHECK(max(copy.parameters()[0].value()).item() < 5);
}

TEST_CASE("what does not say how another is made is not cloned") {
  nn::Sequential model{nn::Linear(2, 2), Secretive()};
  CHECK_THROWS_WITH_AS(nn::clone(model),
                       doctest::Contains("[clone] Secretive does not say how another one is made"),
                       StateError);
}

TEST_CASE("what is tied after construction is not cloned") {
  nn::Sequential model{nn::Linear(3, 3, false), nn::Tanh(), nn::Linear(3, 3, false)};
  model.at<nn::Linear>("2").weight = model.at<nn::Linear>("0").weight;
  CHECK_THROWS_WITH_AS(
      nn::clone(model),
      doctest::Contains("has 1 parameters, and the one that make_another() makes 2"), StateError);
}

TEST_CASE("backward takes its options without a weight") {
  const Parameter w(Tensor::scalar(3));
  Tape tape;
  const Tensor loss = square(w);
  tape.backward(loss, {.retain = true});
  tape.backward(loss, {.sync = false});
  CHECK(w.gradient().item() == 12);
}

TEST_CASE("layers of no module are refused") {
  CHECK_THROWS_AS(nn::Residual(std::unique_ptr<nn::Module>()), UsageError);
  nn::Sequential model;
  CHECK_THROWS_AS(model.insert(0, std::unique_ptr<nn::Module>()), UsageError);
}

TEST_CASE("a clone has the flags of its model, whatever the model is made of") {
  nn::Linear layer(2, 3);
  layer.weight.set_requires_grad(false);
  layer.bias.keep_local();
  const nn::Linear copy = nn::clone(layer);
  CHECK(!copy.weight.requires_grad());
  CHECK(!copy.weight.kept_local());
  CHECK(copy.bias.kept_local());
  nn::BatchNorm buffers(3, {.affine = false});  // no parameters
  buffers.running_mean.fill(2);
  CHECK(nn::clone(buffers).running_mean.item({1}) == 2);
  run_threads(2, {}, [](World& world) {
    nn::BatchNorm norm = nn::SyncBatchNorm(1, world);
    nn::BatchNorm another = nn::clone(norm);
    another(Tensor::full({2, 1}, world.rank()));
    check<Error>(another.running_mean.item() == 0.05f, "the mean over ranks, not {}",
                 another.running_mean.item());
    check<Error>(norm.running_mean.item() == 0, "a mean of its own");
  });
}

TEST_CASE("parameters that a model has named keep their names in a list of a part's") {
  nn::Sequential model{nn::Linear(2, 3), nn::Linear(3, 1)};
  CHECK(model[1].parameters()[0].name() == "weight");
  CHECK(model.parameters()[2].name() == "1.weight");
  CHECK(model[1].parameters()[0].name() == "1.weight");
  CHECK(model[1].state_dict().contains("weight"));
}
