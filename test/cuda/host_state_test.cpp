// What a recorded step reads of the library's state on the host: when that changes, the step is
// taken as it is, so that a training with recorded steps is the same training.

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/nn/optim/clip.h"
#include "support/device.h"
#include "support/temporary_folder.h"

namespace lockstep::test::host_state {
namespace {

constexpr int steps = 12;

struct Program {
  nn::Sequential model, other;
  std::vector<nn::Sequential> kept;
  std::vector<Parameter> parameters;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::GradScaler scaler{{.scale = 8, .growth_interval = 3}};
  Tensor x = Tensor::full({4, 5}, 1, DType::f32, test_device());
  Tensor y = Tensor::zeros({4}, DType::i64, test_device());
  Tensor loss = Tensor::zeros({}, DType::f32, test_device());

  Program() {
    model = make(3);
    other = make(11);
    parameters = model.parameters();
    optimizer =
        std::make_unique<optim::SGD>(parameters, optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
  }
  static nn::Sequential make(std::uint64_t seed) {
    manual_seed(seed);
    nn::Sequential made{nn::Linear(5, 7), nn::ReLU(), nn::Linear(7, 3)};
    made.to(test_device());
    return made;
  }
  void forward() { loss.copy_from(nn::cross_entropy(model(x), y)); }
  void backward(double scale = 1) {
    Tape tape;
    const Tensor value = nn::cross_entropy(model(x), y);
    tape.backward(scale == 1 ? value : value * scale);
    loss.copy_from(value.detach());
  }
  void train() {
    backward();
    optimizer->step();
    optimizer->zero_grad();
  }
};

using Do = std::function<void(Program&)>;

struct Case {
  const char* name;
  std::function<void(Program&, int)> before;  ///< each step, also what is not recorded
  Do step;                                    ///< recorded
  Do after = [](Program&) {};
};

struct Result {
  std::vector<float> values;
  int replays = 0;
};

Result run(const Case& one, bool recorded) {
  Program p;
  Result result;
  StepGraph graph([&] { one.step(p); }, test_device());
  for (int i = 0; i < steps; ++i) {
    one.before(p, i);
    if (recorded)
      result.replays += graph();
    else
      one.step(p);
    one.after(p);
    result.values.push_back(p.loss.to_vector<float>()[0]);
  }
  for (const Parameter& parameter : p.parameters)
    for (const float value : parameter.value().to_vector<float>()) result.values.push_back(value);
  return result;
}

void freeze(Program& p, int i) {
  if (i == 4 || i == 8) p.parameters[3].set_requires_grad(i == 8);
}

void forward_and_backward(Program& p, int i) {
  freeze(p, i);
  p.optimizer->zero_grad();
  p.backward();
}

const Case cases[] = {
    {"the optimizer's step alone, a parameter is frozen", forward_and_backward,
     [](Program& p) { p.optimizer->step(); }},
    {"clip and step alone, a parameter is frozen", forward_and_backward,
     [](Program& p) {
       (void)optim::clip_grad_norm(p.parameters, 0.5);
       p.optimizer->step();
     }},
    {"clip by value alone, a parameter is frozen", forward_and_backward,
     [](Program& p) { optim::clip_grad_value(p.parameters, 0.05); },
     [](Program& p) { p.optimizer->step(); }},
    {"thawed before the step is recorded, with a momentum that was not made",
     [](Program& p, int i) {
       if (i == 0 || i == 1) p.parameters[0].set_requires_grad(i == 1);
     },
     &Program::train},
    {"the scale of a GradScaler", [](Program&, int) {},
     [](Program& p) {
       p.optimizer->zero_grad();
       Tape tape;
       const Tensor value = nn::cross_entropy(p.model(p.x), p.y);
       tape.backward(p.scaler.scale(value));
       p.loss.copy_from(value.detach());
     },
     [](Program& p) {
       (void)p.scaler.step(*p.optimizer);
       p.scaler.update();
     }},
    {"a model that was moved away, and another one in its place",
     [](Program& p, int i) {
       if (i != 5) return;
       p.kept.push_back(std::move(p.model));
       p.model = Program::make(11);
     },
     &Program::forward},
    {"two models that are swapped",
     [](Program& p, int i) {
       if (i == 5) std::swap(p.model, p.other);
     },
     &Program::forward},
    {"a layer that is added",
     [](Program& p, int i) {
       if (i == 5) p.model.append(nn::ReLU());
     },
     &Program::train},
    {"a parameter that is replaced, and kept elsewhere",
     [](Program& p, int i) {
       if (i == 5)
         p.model.at<nn::Linear>("0").weight =
             Parameter(Tensor::full({7, 5}, 0.3, DType::f32, test_device()), "new");
     },
     &Program::forward},
    {"a warm-up of the learning rate",
     [](Program& p, int i) {
       if (i < 4) dynamic_cast<optim::SGD&>(*p.optimizer).set_lr(0.02 * (i + 1));
     },
     &Program::train},
};

TEST_CASE("recorded steps: what they read of the library's state, when it changes") {
  if (on_cpu()) return;
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const Result recorded = run(one, true);
    CHECK(recorded.values == run(one, false).values);
    CHECK(recorded.replays >= 3);
  }
}

TEST_CASE("recorded steps: an Autocast around the call") {
  if (on_cpu()) return;
  const auto train = [](bool recorded) {
    Program p;
    std::vector<float> losses;
    int replays = 0;
    StepGraph graph([&] { p.train(); }, test_device());
    for (int i = 0; i < steps; ++i) {
      std::optional<Autocast> autocast;
      if (i >= 4 && i < 8) autocast.emplace(DType::bf16);
      recorded ? (void)(replays += graph()) : p.train();
      losses.push_back(p.loss.to_vector<float>()[0]);
    }
    if (recorded) CHECK(replays == 9);  // but for the first one, and after a change
    return losses;
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("recorded steps: a HashTrace sees every step that is taken while it lives") {
  if (on_cpu()) return;
  const TemporaryFolder folder;
  const auto train = [&](bool recorded) {
    const std::string path = folder / "trace";
    run_threads(1, {}, [&](World& world) {
      Program p;
      StepGraph graph([&] { p.train(); }, test_device());
      const auto step = [&] { recorded ? (void)graph() : p.train(); };
      for (int i = 0; i < 4; ++i) step();
      const dist::HashTrace trace(world, path);
      for (int i = 0; i < 3; ++i) step();
    });
    std::ifstream file(path);
    std::string first, rest;
    std::getline(file, first);  // it names the run
    rest.assign(std::istreambuf_iterator<char>(file), {});
    return rest;
  };
  const std::string plain = train(false);
  CHECK(std::ranges::count(plain, '\n') > 30);
  CHECK(train(true) == plain);
}

TEST_CASE("recorded steps: whether an optimizer has stepped on all gradients, for a checkpoint") {
  if (on_cpu()) return;
  for (const bool steps_in_graph : {true, false}) {
    CAPTURE(steps_in_graph);
    Program p;
    const auto gradients = [&] {
      p.optimizer->zero_grad();
      p.backward();
    };
    const auto step = [&] { p.optimizer->step(); };
    StepGraph graph(steps_in_graph ? std::function<void()>(step) : gradients, test_device());
    for (int i = 0; i < 5; ++i) {
      steps_in_graph ? gradients() : (void)graph();
      CHECK(p.parameters[0].unstepped());
      steps_in_graph ? (void)graph() : step();
      CHECK_FALSE(p.parameters[0].unstepped());
    }
  }
}

TEST_CASE("recorded steps: work that no replay would do is refused") {
  if (on_cpu()) return;
  const Device other{test_device().kind, 1}, here = test_device();
  const auto refused = [&](const std::function<void()>& step, const char* message) {
    StepGraph graph(step, here);
    (void)graph();
    CHECK_THROWS_WITH_AS(graph(), doctest::Contains(message), StateError);
    CHECK_FALSE(graph());  // as it is
  };
  const Tensor x = Tensor::full({3}, 1), y = Tensor::full({3}, 1, DType::f32, here);
  refused([&] { (void)mul(x, x); }, "computes on the cpu, which no replay does");
  refused([] {}, "[step graph] the step does nothing on");
  if (gpu::count() > 1) {
    const Tensor z = Tensor::full({3}, 1, DType::f32, other);
    refused(
        [&] {
          (void)mul(y, y);
          (void)mul(z, z);
        },
        "computes on");
  }
  dist::LossLog log;
  refused([&] { log.add(sum(y), Weight{3, 3}); }, "[loss log] in a step that is recorded");
  StepGraph moved([&] { (void)mul(y, y); }, here);
  const StepGraph taken = std::move(moved);
  CHECK_THROWS_WITH_AS(moved(), doctest::Contains("it was moved away"), StateError);
  CHECK_THROWS_AS(StepGraph({}, here), UsageError);
}

}  // namespace
}  // namespace lockstep::test::host_state
