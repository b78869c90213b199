// A recorded step against the same step run operation by operation: the same bits, in fewer
// launches from the host.
#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "lockstep/core/generator.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/optim/optimizer.h"
#include "support/device.h"

using namespace lockstep;
using test::test_device;

namespace {

constexpr std::int64_t batch = 6, inputs = 5, classes = 3;

struct Trainer {
  nn::Sequential model;
  std::unique_ptr<optim::Optimizer> optimizer;
  Tensor x = Tensor::empty({batch, inputs}, DType::f32, test_device());
  Tensor y = Tensor::empty({batch}, DType::i64, test_device());
  Tensor loss = Tensor::empty({}, DType::f32, test_device());

  explicit Trainer(const std::string& name) {
    manual_seed(3);
    model.append(nn::Linear(inputs, 7));
    model.append(nn::ReLU());
    model.append(nn::Linear(7, classes));
    model.to(test_device());
    const auto parameters = model.parameters();
    if (name == "adam")
      optimizer = std::make_unique<optim::Adam>(parameters,
                                                optim::Adam::Options{.lr = 0.01, .amsgrad = true});
    else if (name == "rmsprop")
      optimizer = std::make_unique<optim::RMSprop>(
          parameters, optim::RMSprop::Options{.lr = 0.01, .momentum = 0.5, .centered = true});
    else if (name == "lion")
      optimizer = std::make_unique<optim::Lion>(parameters, optim::Lion::Options{.lr = 0.01});
    else
      optimizer =
          std::make_unique<optim::SGD>(parameters, optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
  }
  void load(int step) const {
    Tensor images = Tensor::empty({batch, inputs});
    Tensor labels = Tensor::empty({batch}, DType::i64);
    Generator generator(static_cast<std::uint64_t>(step));
    generator.normal(images, 0, 1);
    generator.randint(0, classes, labels);
    x.copy_from(images);
    y.copy_from(labels);
  }
  void step() {
    Tape tape;
    const Tensor result = nn::cross_entropy(model(x), y);
    tape.backward(result);
    optimizer->step();
    optimizer->zero_grad();
    loss.copy_from(result.detach());
  }
};

}  // namespace

TEST_CASE("step graph: replayed steps have the bits of steps that are run one by one") {
  for (const char* optimizer : {"sgd", "adam", "rmsprop", "lion"}) {
    CAPTURE(optimizer);
    Trainer plain(optimizer), recorded(optimizer);
    StepGraph graph([&] { recorded.step(); }, test_device());
    for (int i = 0; i < 12; ++i) {
      for (Trainer* trainer : {&plain, &recorded}) {
        if (i == 8) trainer->optimizer->set_lr(0.02);  // what was recorded no longer holds
        trainer->load(i);
      }
      plain.step();
      graph();
      CHECK(recorded.loss.item() == plain.loss.item());
    }
    const auto expected = plain.model.parameters();
    const auto got = recorded.model.parameters();
    for (std::size_t k = 0; k < expected.size(); ++k)
      CHECK(got[k].value().to_vector<float>() == expected[k].value().to_vector<float>());
    if (test::on_cpu()) continue;
    CHECK(graph.recordings() == 2);
    CHECK(graph.kernels() > 5);
  }
}

TEST_CASE("step graph: a group that joins is part of the next recording, with its state") {
  if (test::on_cpu()) return;
  const auto filled = [](double value, const char* name) {
    return Parameter(Tensor::full({3}, value, DType::f32, test_device()), name);
  };
  const Parameter a = filled(1, "a"), b = filled(2, "b");
  a.gradient_slot().fill(0);
  b.gradient_slot().fill(0);
  optim::Lion lion({a}, {.lr = 0.25});
  optim::SGD sgd({a}, {.lr = 0, .momentum = 0.5});
  StepGraph graph(
      [&] {
        lion.zero_grad();
        Tape tape;
        tape.backward(sum(a) + sum(b));
        lion.step();
        sgd.step();
      },
      test_device());
  const auto b_after_step = [&] {
    graph();
    return b.value().to_vector<float>();
  };
  b_after_step();
  CHECK(b_after_step() == std::vector<float>(3, 2.0f));
  lion.add_param_group({b}, {.lr = 0.5});
  CHECK(b_after_step() == std::vector<float>(3, 1.5f));
  CHECK(b_after_step() == std::vector<float>(3, 1.0f));
  CHECK(graph.recordings() == 2);
  // Its momentum is made by a first step, which is taken as it is: -0.5 of lion, -0.5 of sgd.
  sgd.add_param_group({b}, {.lr = 0.5, .momentum = 0.5});
  CHECK(b_after_step() == std::vector<float>(3, 0.0f));
  CHECK(b_after_step() == std::vector<float>(3, -1.25f));
  CHECK(graph.recordings() == 3);
}

TEST_CASE("step graph: a step that waits for the device is refused, and can be mended") {
  if (test::on_cpu()) return;
  Tensor value = Tensor::full({3}, 1, DType::f32, test_device());
  bool reads = true;
  StepGraph graph(
      [&] {
        value.fill(2);
        if (reads) (void)value.slice(0, 1).item();
      },
      test_device());
  graph();  // the first call runs it as it is
  CHECK_THROWS_WITH_AS(graph(), doctest::Contains("nothing can be read on the host"), StateError);
  reads = false;
  value.fill(1);
  CHECK_FALSE(graph());  // again as it is: state may have to be made
  CHECK(graph());
  CHECK(value.to_vector<float>() == std::vector<float>{2, 2, 2});
  CHECK(graph.recordings() == 1);
}

TEST_CASE("step graph: dropout is refused, since every replay would draw the same mask") {
  if (test::on_cpu()) return;
  const Tensor x = Tensor::full({3}, 1, DType::f32, test_device());
  StepGraph graph([&] { (void)dropout(x, 0.5); }, test_device());
  graph();
  CHECK_THROWS_AS(graph(), StateError);
}

TEST_CASE("step graph: copying from the cpu is refused, since every replay would read it again") {
  if (test::on_cpu()) return;
  const Tensor host = Tensor::full({3}, 1);
  const Tensor x = Tensor::empty({3}, DType::f32, test_device());
  StepGraph graph([&] { x.copy_from(host); }, test_device());
  graph();
  CHECK_THROWS_AS(graph(), StateError);
}

TEST_CASE("step graph: a step that is being recorded runs no other one") {
  if (test::on_cpu()) return;
  const Tensor value = Tensor::full({3}, 1, DType::f32, test_device());
  StepGraph inner([&] { value.fill(3); }, test_device());
  StepGraph outer([&] { inner(); }, test_device());
  outer();
  CHECK_THROWS_WITH_AS(outer(), doctest::Contains("runs another one"), StateError);
  CHECK_FALSE(StepGraph::recording());
}

TEST_CASE("step graph: a recording belongs to its stream") {
  if (test::on_cpu()) return;
  const Tensor value = Tensor::full({3}, 1, DType::f32, test_device());
  StepGraph graph([&] { value.fill(2); }, test_device());
  graph();
  graph();
  CHECK(value.to_vector<float>() == std::vector<float>{2, 2, 2});  // waits
  CHECK(graph.recordings() == 1);
  const Stream other = Stream::create(test_device());
  const StreamGuard guard(other);
  graph();
  graph();
  other.synchronize();
  CHECK(graph.recordings() == 2);
}

TEST_CASE("step graph: memory that ends while a replay uses it, and another in its place") {
  if (test::on_cpu()) return;
  const auto filled = [](double value) {
    return Tensor::full({3}, value, DType::f32, test_device());
  };
  Tensor last = filled(-1);
  const Tensor seen = filled(0);
  StepGraph graph([&] { seen.copy_from(last); }, test_device());
  for (int i = 0; i < 9; ++i) {
    seen.fill(0);
    CHECK(graph() == (i % 4 != 0));
    const auto value = static_cast<float>(i / 4 * 4 - 1);
    if (i % 4 == 3) last = filled(i);  // the replay may not have begun
    CHECK(seen.to_vector<float>() == std::vector<float>(3, value));
  }
  CHECK(graph.recordings() == 2);
  last = Tensor();
  CHECK_THROWS_AS(graph(), StateError);  // as the function does
}
