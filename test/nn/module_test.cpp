// Modules: names, state dicts, modes; optimizers: groups, guards, skipped parameters.

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

struct Tied : nn::Module {
  nn::Linear first{3, 3}, second{3, 3};
  Tensor counter = Tensor::zeros({1}, DType::i64);
  Tied() { second.weight = first.weight; }
  Tensor forward(const Tensor& x) override { return second(relu(first(x))); }
  void visit(nn::Visitor& p) override {
    p("first", first);
    p("second", second);
    p("counter", counter);
  }
};

std::vector<std::string> names_of(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& p : parameters) names.push_back(p.name());
  return names;
}

}  // namespace

TEST_CASE("parameters are named by their path, a tied one once") {
  nn::Sequential model{nn::Linear(2, 3), nn::ReLU(), Tied()};
  CHECK(names_of(model.parameters()) == std::vector<std::string>{"0.weight", "0.bias",
                                                                 "2.first.weight", "2.first.bias",
                                                                 "2.second.bias"});
  REQUIRE(model.buffers().size() == 1);
  CHECK(model.buffers()[0].name == "2.counter");
}

TEST_CASE("a Linear without bias has one parameter, and takes a batch of no rows") {
  nn::Linear layer(4, 2, false);
  CHECK(layer.parameters().size() == 1);
  CHECK(layer(Tensor::zeros({0, 4})).shape() == Shape{0, 2});
  CHECK_THROWS_AS(nn::Linear(0, 3), ShapeError);
  CHECK_THROWS_AS(layer(Tensor::zeros({1, 5})), ShapeError);
}

TEST_CASE("state dicts go round, and refuse what does not fit without touching the model") {
  manual_seed(1);
  nn::Sequential a{nn::Linear(2, 3)};
  nn::Sequential b{nn::Linear(2, 3)};
  const auto state = a.state_dict();
  b.load_state_dict(state);
  CHECK(b.state_dict().at("0.weight").to_vector<float>() ==
        state.at("0.weight").to_vector<float>());

  auto wrong = state;
  wrong["0.weight"] = Tensor::zeros({3, 2});
  wrong["0.bias"] = Tensor::zeros({4});
  CHECK_THROWS_WITH_AS(b.load_state_dict(wrong), doctest::Contains("(3,) in the model and (4,)"),
                       ShapeError);
  CHECK(b.state_dict().at("0.weight").to_vector<float>() ==
        state.at("0.weight").to_vector<float>());
  auto extra = state;
  extra["1.weight"] = Tensor::zeros({1});
  CHECK_THROWS_WITH_AS(b.load_state_dict(extra), doctest::Contains("1.weight"), StateError);
  auto missing = state;
  missing.erase("0.bias");
  CHECK_THROWS_WITH_AS(b.load_state_dict(missing), doctest::Contains("0.bias"), StateError);
}

TEST_CASE("train and eval reach every child") {
  struct Mode : nn::Module {
    Tensor forward(const Tensor&) override { return Tensor::scalar(training() ? 1 : 0); }
  };
  nn::Sequential inner;
  inner.append(Mode());
  nn::Sequential model;
  model.append(std::move(inner));
  CHECK(model(Tensor()).item() == 1);
  model.eval();
  CHECK(model(Tensor()).item() == 0);
  model.train();
  CHECK(model(Tensor()).item() == 1);
}

TEST_CASE("Dropout is the identity in evaluation") {
  manual_seed(2);
  nn::Sequential model{nn::Dropout(0.5)};
  const Tensor x = Tensor::full({1000}, 1);
  const auto dropped = model(x).to_vector<float>();
  CHECK(std::count(dropped.begin(), dropped.end(), 0.0f) > 400);
  CHECK(std::count(dropped.begin(), dropped.end(), 2.0f) > 400);
  model.eval();
  CHECK(model(x).to_vector<float>() == x.to_vector<float>());
  model.train();
  CHECK(model(x).to_vector<float>() != dropped);
  CHECK_THROWS_WITH_AS(nn::Dropout(1), "[Dropout] p must be in [0, 1), got 1", UsageError);
}

TEST_CASE("groups have their own options; a parameter without gradient is skipped") {
  const Parameter a(Tensor::of<float>({1}, {1}), "a"), b(Tensor::of<float>({1}, {1}), "b");
  const Parameter idle(Tensor::of<float>({1}, {1}), "idle");
  optim::SGD optimizer({{{a, idle}, {.lr = 0.5}}, {{b}, {.lr = 0.25, .weight_decay = 1}}});
  Tape tape;
  tape.backward(sum(a) + sum(b));
  optimizer.step();
  CHECK(a.value().item() == 0.5);
  CHECK(b.value().item() == 0.5);  // 1 - 0.25 * (1 + 1 * 1)
  CHECK(idle.value().item() == 1);
  CHECK_THROWS_WITH_AS(optim::SGD({{{a}, {}}, {{a}, {}}}), doctest::Contains("'a' is given twice"),
                       UsageError);
}

TEST_CASE("Adam's step count belongs to the parameter") {
  // A first Adam step moves by lr, whatever the gradient; had the skipped step counted, it would
  // not.
  const Parameter used(Tensor::of<double>({1}, {0}), "used"),
      late(Tensor::of<double>({1}, {0}), "late");
  optim::Adam optimizer({used, late}, {.lr = 0.1});
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    Tape tape;
    tape.backward(step < 3 ? sum(used) : sum(late) * Tensor::scalar(7, DType::f64));
    optimizer.step();
  }
  CHECK(late.value().item() == doctest::Approx(-0.1));
  CHECK(used.value().item() == doctest::Approx(-0.3));
}

TEST_CASE("AdamW decays by default, in groups too") {
  for (const bool grouped : {false, true}) {
    const Parameter w(Tensor::of<double>({1}, {1}), "w");
    optim::AdamW optimizer =
        grouped ? optim::AdamW({{{w}, {.lr = 0.1}}}) : optim::AdamW({w}, {.lr = 0.1});
    Tape tape;
    tape.backward(sum(w));
    optimizer.step();
    CHECK(w.value().item() == doctest::Approx(1 - 0.1 * 0.01 - 0.1));
  }
}

TEST_CASE("options out of their range are refused with the value") {
  const std::vector<Parameter> one = {Parameter(Tensor::zeros({1}), "w")};
  CHECK_THROWS_WITH_AS(optim::SGD(one, {.lr = -1}), doctest::Contains("-1"), UsageError);
  CHECK_THROWS_AS(optim::SGD(one, {.lr = 0.1, .momentum = -0.5}), UsageError);
  CHECK_THROWS_AS(optim::SGD(one, {.lr = 0.1, .nesterov = true}), UsageError);
  CHECK_THROWS_WITH_AS(optim::Adam(one, {.beta1 = 1}), doctest::Contains("beta1"), UsageError);
  CHECK_THROWS_WITH_AS(optim::Adam(one, {.beta2 = -0.1}),
                       "[Adam] beta2 must be in [0, 1), got -0.1", UsageError);
  CHECK_THROWS_AS(optim::AdamW(one, {.eps = -1e-8}), UsageError);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::nan("")}) {
    CHECK_THROWS_AS(optim::SGD(one, {.lr = bad}), UsageError);
    CHECK_THROWS_AS(optim::SGD(one, {.momentum = bad}), UsageError);
    CHECK_THROWS_AS(optim::SGD(one, {.momentum = 0.9, .dampening = bad}), UsageError);
    CHECK_THROWS_AS(optim::SGD(one, {.weight_decay = bad}), UsageError);
    CHECK_THROWS_AS(optim::Adam(one, {.lr = bad}), UsageError);
    CHECK_THROWS_AS(optim::Adam(one, {.beta1 = bad}), UsageError);
    CHECK_THROWS_AS(optim::Adam(one, {.eps = bad}), UsageError);
    CHECK_THROWS_AS(optim::AdamW(one, {.weight_decay = bad}), UsageError);
  }
}

TEST_CASE("options that are changed out of their range are refused by the next step") {
  const Parameter w(Tensor::zeros({1}), "w");
  optim::SGD sgd({w}, {.lr = 0.1});
  optim::Adam adam({w}, {.lr = 0.1});
  Tape tape;
  tape.backward(sum(w));
  sgd.groups()[0].options.lr = std::nan("");
  adam.groups()[0].options.beta1 = 1;
  CHECK_THROWS_AS(sgd.step(), UsageError);
  CHECK_THROWS_WITH_AS(adam.step(), "[Adam] beta1 must be in [0, 1), got 1", UsageError);
  CHECK(w.value().item() == 0);
}

TEST_CASE("a safetensors file has the published layout") {
  const auto path =
      std::filesystem::temp_directory_path() / fmt::format("lockstep-{}.st", ::getpid());
  nn::save_safetensors(path,
                       {{"b.weight", Tensor::of<float>({2, 1}, {1.5f, -2})},
                        {"a", Tensor::of<std::uint8_t>({3}, {7, 8, 9})},
                        {"empty", Tensor::zeros({0, 4})},
                        {"scalar", Tensor::scalar(0.25, DType::f64)}},
                       {{"bucket_layout", "1 0 / 1"}});
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  std::filesystem::remove(path);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  REQUIRE(8 + length <= bytes.size());
  CHECK(length % 8 == 0);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  const std::string data = bytes.substr(8 + length);
  CHECK(data.size() == 8 + 8 + 3);
  const auto at = [&](const char* name) { return header.at(name).at("data_offsets"); };
  CHECK(header.at("__metadata__") == nlohmann::json({{"bucket_layout", "1 0 / 1"}}));
  CHECK(at("scalar") == nlohmann::json({0, 8}));  // largest elements first, then by name
  CHECK(at("b.weight") == nlohmann::json({8, 16}));
  CHECK(at("empty") == nlohmann::json({16, 16}));
  CHECK(at("a") == nlohmann::json({16, 19}));
  CHECK(header.at("b.weight").at("dtype") == "F32");
  CHECK(header.at("b.weight").at("shape") == nlohmann::json({2, 1}));
  CHECK(header.at("scalar").at("shape") == nlohmann::json::array());
  float second = 0;
  std::memcpy(&second, data.data() + 12, 4);
  CHECK(second == -2);
  CHECK_THROWS_WITH_AS(nn::save_safetensors("/dev/null", {}),
                       doctest::Contains("not a regular file"), DataError);
  CHECK_THROWS_WITH_AS(nn::save_safetensors("/nowhere/x.st", {}),
                       doctest::Contains("/nowhere/x.st"), DataError);
}

TEST_CASE("modules and parameters are written to a stream and by fmt") {
  const nn::Sequential model{nn::Linear(2, 3), nn::Tanh()};
  std::ostringstream out;
  out << model << Parameter(Tensor::ones({2}), "w");
  CHECK(out.str() ==
        "Sequential: 9 parameters\n  0  Linear(2 -> 3)  9\n  1  tanh\n"
        "'w'");
  CHECK(fmt::format("{}{}", model, Parameter(Tensor::ones({2}), "w")) == out.str());
}
