// A run that is saved, ended and resumed is the run that was never interrupted, bit for bit.

#include "lockstep/nn/checkpoint/checkpoint.h"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>

#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

namespace {

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(std::vector<Parameter>)>;

template <class O>
MakeOptimizer make(typename O::Options options) {
  return [options](std::vector<Parameter> parameters) {
    return std::make_unique<O>(std::move(parameters), options);
  };
}

const std::vector<std::pair<const char*, MakeOptimizer>>& optimizers() {
  static const std::vector<std::pair<const char*, MakeOptimizer>> all = {
      {"SGD", make<optim::SGD>({.lr = 0.05})},
      {"SGD with momentum", make<optim::SGD>({.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01})},
      {"SGD, dampened", make<optim::SGD>({.lr = 0.05, .momentum = 0.9, .dampening = 0.3})},
      {"Adam", make<optim::Adam>({.lr = 0.01})},
      {"Adam, AMSGrad", make<optim::Adam>({.lr = 0.01, .amsgrad = true})},
      {"AdamW", make<optim::AdamW>({.lr = 0.01})},
      {"RMSprop", make<optim::RMSprop>({.lr = 0.01, .momentum = 0.5, .centered = true})},
      {"Lion", make<optim::Lion>({.lr = 0.001})},
  };
  return all;
}

/// A model with a dropout and running statistics, and all it takes to train it.
struct Run {
  explicit Run(World& world, const MakeOptimizer& make_optimizer, std::uint64_t seed)
      : world(world) {
    manual_seed(seed + 10 * static_cast<std::uint64_t>(world.rank()));
    model = nn::Sequential{nn::Linear(3, 8), nn::BatchNorm(8), nn::ReLU(), nn::Dropout(0.3),
                           nn::Linear(8, 2)};
    optimizer = make_optimizer(model.parameters());
    ddp.emplace(model.parameters(), model.buffers(), world);
    checkpoint.emplace(*ddp);
    checkpoint->add("model", model);
    checkpoint->add("optimizer", *optimizer);
    checkpoint->add("epoch", epoch);
    checkpoint->add("position", position);
    Generator draw(11);
    Tensor x = Tensor::empty({24, 3}), y = Tensor::empty({24, 2});
    draw.normal(x);
    draw.normal(y);
    set.emplace(data::TensorDataset({{"x", x}, {"y", y}}));
  }

  /// Takes up to `most` steps of two epochs; after each, calls `after(number of the step)`.
  void train(
      int most, const std::function<void(int)>& after = [](int) {}) {
    int taken = 0;
    for (; epoch < 2; ++epoch, position = 0)
      for (const data::Batch& batch :
           data::Loader(*set, {.total_batch = 9, .shuffle = true, .seed = 5, .begin = position},
                        world, static_cast<int>(epoch))) {
        if (taken == most) return;
        Tape tape;
        const Tensor loss = nn::mse(model(batch.x), batch.y);
        tape.backward(loss, batch.weight);
        losses.push_back(batch.x.size(0) > 0 ? loss.item() : 0);
        optimizer->step();
        optimizer->zero_grad();
        position = batch.position;
        after(++taken);
      }
  }

  World& world;
  nn::Sequential model;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::optional<dist::DistributedDataParallel> ddp;
  std::optional<nn::Checkpoint> checkpoint;
  std::optional<data::TensorDataset> set;
  std::int64_t epoch = 0, position = 0;
  std::vector<double> losses;
};

void check_same_state(nn::StateDict a, nn::StateDict b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, value] : a) {
    CAPTURE(name);
    REQUIRE(b.contains(name));
    const Tensor other = b.at(name);
    CHECK(value.shape() == other.shape());
    CHECK(std::memcmp(value.raw(), other.raw(), value.bytes()) == 0);
  }
}

}  // namespace

TEST_SUITE_BEGIN("not-cpu not-late");  // the same files, whatever computes

TEST_CASE("checkpoint: saved, ended and resumed is never interrupted, bit for bit") {
  const TemporaryFolder folder;
  for (const int size : {1, 2, 3})
    for (const auto& [name, make_optimizer] : optimizers())
      for (const int cut : {1, 2, 3, 5}) {
        CAPTURE(size);
        CAPTURE(name);
        CAPTURE(cut);
        const std::string path = folder / "run";
        run_threads(size, {}, [&](World& world) {
          Run whole(world, make_optimizer, 3);
          whole.train(100, [&](int step) {
            if (step == cut) whole.checkpoint->save(path);
          });
          Run resumed(world, make_optimizer, 4);  // other weights, other draws
          resumed.checkpoint->load(path);
          resumed.train(100);
          REQUIRE(whole.losses.size() == 6);
          CHECK(resumed.losses ==
                std::vector<double>(whole.losses.begin() + cut, whole.losses.end()));
          check_same_state(whole.model.state_dict(), resumed.model.state_dict());
          check_same_state(whole.optimizer->state_dict(), resumed.optimizer->state_dict());
        });
      }
}

namespace {

/// A model, an optimizer and a number, on one rank without DDP.
struct Small {
  nn::Sequential model{nn::Linear(2, 3)};
  optim::Adam optimizer{model.parameters(), {.lr = 0.01}};
  std::int64_t step = 123456789012345;
  nn::Checkpoint checkpoint;
  Small() {
    checkpoint.add("model", model);
    checkpoint.add("optimizer", optimizer);
    checkpoint.add("step", step);
  }
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

TEST_CASE("checkpoint: every bit that is flipped is found, or changes nothing") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  manual_seed(1);
  Small saved;
  saved.checkpoint.save(path);
  const std::string whole = bytes_of(path);
  int found = 0;
  std::uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  for (std::size_t bit = 0; bit < 8 * whole.size(); bit += bit < 8 * (8 + header) ? 5 : 61) {
    CAPTURE(bit);
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    std::ofstream(path, std::ios::binary) << bytes;
    manual_seed(2);
    Small loaded;
    loaded.step = 0;
    try {
      loaded.checkpoint.load(path);
      check_same_state(saved.model.state_dict(), loaded.model.state_dict());
      check_same_state(saved.optimizer.state_dict(), loaded.optimizer.state_dict());
      CHECK(loaded.step == saved.step);
    } catch (const Error& error) {
      ++found;
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      CHECK(loaded.step == 0);
    }
  }
  CHECK(found > static_cast<int>(3 * header / 2));
}

TEST_CASE("checkpoint: parts and numbers that are not the file's, and names that are none") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  Small saved;
  saved.checkpoint.save(path);
  const auto refused = [&](const char* part, const std::function<void(nn::Checkpoint&)>& add) {
    nn::Checkpoint other;
    add(other);
    CHECK_THROWS_WITH_AS(other.load(path), doctest::Contains(part), StateError);
  };
  Small here;
  std::int64_t epoch = 0;
  refused("has 'model', which was not added", [&](auto& c) {
    c.add("optimizer", here.optimizer);
    c.add("step", here.step);
  });
  refused("has no 'teacher'", [&](auto& c) {
    c.add("model", here.model);
    c.add("optimizer", here.optimizer);
    c.add("teacher", here.model);
    c.add("step", here.step);
  });
  refused("has no the number 'epoch'", [&](auto& c) {
    c.add("model", here.model);
    c.add("optimizer", here.optimizer);
    c.add("step", here.step);
    c.add("epoch", epoch);
  });
  for (const char* name : {"", "a/b", "model", "step", "random"})
    CHECK_THROWS_AS(here.checkpoint.add(name, epoch), UsageError);
  CHECK_THROWS_AS(here.checkpoint.save(path, {.keep = 0}), UsageError);
  CHECK_THROWS_AS(here.checkpoint.save(path, {.timeout = dist::Seconds(0)}), UsageError);
  nn::save_safetensors(path, here.model.state_dict());
  CHECK_THROWS_WITH_AS(here.checkpoint.load(path), doctest::Contains("no checkpoint"), DataError);
}

TEST_CASE("checkpoint: the newest and those before it, as many as are kept") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  Small run;
  for (run.step = 1; run.step <= 5; ++run.step) run.checkpoint.save(path, {.keep = 3});
  for (const auto& [name, step] :
       {std::pair("run", 5), std::pair("run.1", 4), std::pair("run.2", 3)})
    CHECK(nn::Checkpoint::manifest(folder / name).numbers.at("step") == step);
  CHECK(std::distance(std::filesystem::directory_iterator(folder / ""), {}) == 3);
  std::ofstream(path) << "no more";
  const std::string left = "(still there: '" + path + ".1', '" + path + ".2')";
  CHECK_THROWS_WITH_AS(run.checkpoint.load(path), doctest::Contains(left.c_str()), DataError);
}

TEST_CASE(
    "checkpoint: a rank that cannot read or write is an error of all, and the old file stays") {
  const TemporaryFolder folder;
  const std::string path = folder / "run";
  run_threads(3, {}, [&](World& world) {
    Run run(world, make<optim::SGD>({.lr = 0.1}), 1);
    run.checkpoint->save(path);
    struct Failing {
      bool fails;
      nn::StateDict state_dict() const {
        check<DataError>(!fails, "no state today");
        return {{"x", Tensor::ones({1})}};
      }
      void load_state_dict(const nn::StateDict&) const {
        check<DataError>(!fails, "no loading today");
      }
    } part{world.rank() == 1};
    run.checkpoint->add_per_rank("part", part);
    const std::string before = bytes_of(path);
    test::expect_error<Error>("no state today", [&] { run.checkpoint->save(path); });
    part.fails = false;
    run.checkpoint->save(folder / "new");
    test::expect(bytes_of(path) == before, "the old file has changed");
    part.fails = world.rank() == 1;
    test::expect_error<Error>("no state today", [&] { run.checkpoint->load(folder / "new"); });
    run.model.parameters()[0].value().data<float>()[0] += static_cast<float>(world.rank());
    part.fails = false;
    test::expect_error<StateError>("", [&] { run.checkpoint->save(path); });
    test::expect(bytes_of(path) == before, "replicas that differ replaced a good checkpoint");
  });
}

TEST_SUITE_END();

TEST_CASE("state of optimizers: what does not fit changes nothing, and is named") {
  manual_seed(5);
  nn::Sequential model{nn::Linear(2, 3)}, other{nn::Linear(2, 4)};
  optim::Adam optimizer(model.parameters(), {.lr = 0.01});
  const nn::StateDict state = optimizer.state_dict();
  const auto refused = [&](const char* part, const std::function<void(nn::StateDict&)>& spoil) {
    nn::StateDict spoiled = state;
    for (auto& [name, value] : spoiled) value = value.clone();
    spoiled.at("group 0.lr").fill(0.5);
    spoiled.at("0.weight.mean").fill(9);
    spoil(spoiled);
    CHECK_THROWS_WITH_AS(optimizer.load_state_dict(spoiled), doctest::Contains(part), Error);
    CHECK(optimizer.lr() == 0.01);
    CHECK(optimizer.state_dict().at("0.weight.mean").to_vector<float>()[0] == 0);
  };
  refused("lacks '0.bias.mean'", [](auto& s) { s.erase("0.bias.mean"); });
  refused("lacks 'group 0.eps'", [](auto& s) { s.erase("group 0.eps"); });
  refused("has no 'x'", [](auto& s) { s.emplace("x", Tensor::ones({})); });
  refused("beta1 must be in [0, 1), got 2", [](auto& s) { s.at("group 0.beta1").fill(2); });
  refused("in group 0, and in group 1", [](auto& s) { s.at("0.bias.group").fill(1); });
  refused("(3, 2) in the optimizer and (1,)",
          [](auto& s) { s.at("0.weight.mean") = Tensor::zeros({1}); });
  refused("f32 in the optimizer and f64",
          [](auto& s) { s.at("0.bias.mean") = Tensor::zeros({3}, DType::f64); });
  refused("'group 0.lr' is (2,)", [](auto& s) { s.at("group 0.lr") = Tensor::zeros({2}); });
  CHECK_THROWS_AS(optim::SGD(model.parameters(), {}).load_state_dict(state), StateError);
  CHECK_THROWS_AS(optim::Adam(other.parameters(), {}).load_state_dict(state), ShapeError);
  optim::Adam nameless({Parameter(Tensor::ones({1}))}, {});
  CHECK_THROWS_WITH_AS(nameless.state_dict(),
                       doctest::Contains("parameter 0 (unnamed, of shape (1,)): set_name()"),
                       StateError);
}

TEST_CASE(
    "load_state_dict: what is missing and what is unknown, all of it, or left out by choice") {
  nn::Sequential model{nn::Linear(2, 3)};
  nn::StateDict state = model.state_dict();
  state.erase("0.bias");
  state.emplace("head.weight", Tensor::ones({1}));
  CHECK_THROWS_WITH_AS(
      model.load_state_dict(state),
      "[load_state_dict] the state lacks '0.bias' of the model, which has no 'head.weight'",
      StateError);
  const nn::LoadReport report = model.load_state_dict(state, false);
  CHECK(report.missing == std::vector<std::string>{"0.bias"});
  CHECK(report.unexpected == std::vector<std::string>{"head.weight"});
}
