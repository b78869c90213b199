// Whole training runs against PyTorch's losses, step by step (test/reference/make_training.py).

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

nlohmann::json reference() {
  std::ifstream file(LOCKSTEP_TEST_DATA "/training.json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

nn::Sequential make_model() {
  return nn::Sequential{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 64), nn::ReLU(),
                        nn::Linear(64, 10)};
}

void compare(const char* name, nn::Sequential& model, optim::Optimizer& optimizer) {
  const auto expected = reference().at(name).get<std::vector<double>>();
  const auto [train, test] = data::load_idx(LOCKSTEP_SOURCE_DIR "/samples/data/digits");
  std::size_t step = 0;
  for (int epoch = 0; step < expected.size(); ++epoch)
    for (const data::Batch& batch :
         data::Loader(train, {.batch = 32, .shuffle = true}, {}, epoch)) {
      if (step == expected.size()) break;
      Tape tape;
      const Tensor loss = nn::cross_entropy(model(batch.x), batch.y);
      tape.backward(loss, batch.weight);
      optimizer.step();
      optimizer.zero_grad();
      const double difference = std::abs(loss.item() - expected[step]) / expected[step];
      INFO(name, " step ", step, ": ", loss.item(), " here, ", expected[step], " in PyTorch");
      if (step < 5) CHECK(difference < 1e-6);
      if (step < 50) CHECK(difference < 1e-5);
      CHECK(difference < 1e-3);
      ++step;
    }
}

}  // namespace

TEST_CASE("Linear starts with PyTorch's weights, bit for bit") {
  manual_seed(0);
  nn::Sequential model = make_model();
  const nlohmann::json start = reference().at("start");
  const auto state = model.state_dict();
  REQUIRE(state.size() == start.size());
  for (const auto& [name, value] : state) {
    const auto expected = start.at(name).get<std::vector<double>>();
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(value.data<float>()[i] == static_cast<float>(expected[i]));
  }
}

TEST_CASE("SGD with momentum follows PyTorch") {
  manual_seed(0);
  nn::Sequential model = make_model();
  optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  compare("sgd", model, optimizer);
}

TEST_CASE("Adam follows PyTorch") {
  manual_seed(0);
  nn::Sequential model = make_model();
  optim::Adam optimizer(model.parameters(), {.lr = 0.001});
  compare("adam", model, optimizer);
}

TEST_CASE("AdamW follows PyTorch") {
  manual_seed(0);
  nn::Sequential model = make_model();
  optim::AdamW optimizer(model.parameters(), {.lr = 0.001, .weight_decay = 0.01});
  compare("adamw", model, optimizer);
}

TEST_CASE("Adam with AMSGrad follows PyTorch") {
  manual_seed(0);
  nn::Sequential model = make_model();
  optim::Adam optimizer(model.parameters(), {.lr = 0.001, .amsgrad = true});
  compare("amsgrad", model, optimizer);
}

TEST_CASE("RMSprop follows PyTorch") {
  manual_seed(0);
  nn::Sequential model = make_model();
  optim::RMSprop optimizer(model.parameters(), {.lr = 0.001});
  compare("rmsprop", model, optimizer);
}

TEST_CASE("Lion follows a few lines of PyTorch") {
  manual_seed(0);
  nn::Sequential model = make_model();
  optim::Lion optimizer(model.parameters(), {.lr = 0.0003});
  compare("lion", model, optimizer);
}
