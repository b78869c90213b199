// What a program changes on the host between two steps: a recorded step takes it like any other.

#include <doctest/doctest.h>

#include <functional>
#include <thread>
#include <vector>

#include "lockstep/core/generator.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/optim/clip.h"
#include "lockstep/nn/optim/ema.h"
#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/nn/recorded_steps.h"
#include "support/device.h"

using namespace lockstep;
using test::on_cpu;
using test::test_device;

namespace host_changes {

constexpr int steps = 14;

struct Program {
  nn::Sequential model, teacher;
  Tensor added = Tensor::full({6}, 0.25, DType::f32, test_device());
  std::unique_ptr<optim::SGD> optimizer;
  nn::StateDict first;  // of the optimizer, before its first step
  std::vector<float> losses;

  Program() {
    manual_seed(3);
    model.append(nn::Linear(5, 6));
    model.append(nn::BatchNorm(6));
    model.append(nn::ReLU());
    model.append(nn::Linear(6, 3));
    model.to(test_device());
    optimizer = std::make_unique<optim::SGD>(model.parameters(),
                                             optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
    first = optimizer->state_dict();
  }
  static data::Batch batch(int step) {
    Generator generator(static_cast<std::uint64_t>(step));
    const Tensor x = Tensor::empty({8, 5}), y = Tensor::empty({8}, DType::i64);
    generator.normal(x, 0, 1);
    generator.randint(0, 3, y);
    data::Batch batch;
    batch.x = x.to(test_device());
    batch.y = y.to(test_device());
    batch.fields = {{"x", batch.x}, {"y", batch.y}};
    batch.weight = {8, 8};
    return batch;
  }
  Tensor backward(const data::Batch& batch) {
    Tape tape;
    const Tensor loss = nn::cross_entropy(model(batch.x), batch.y);
    tape.backward(loss, batch.weight);
    return loss.detach();
  }
  std::vector<float> run(bool recorded, const std::function<void(Program&, int)>& change,
                         const std::function<Tensor(Program&, const data::Batch&)>& step,
                         const std::function<void(Program&)>& after) {
    nn::RecordedSteps steps_of([&](const data::Batch& b) { return step(*this, b); });
    for (int i = 0; i < steps; ++i) {
      change(*this, i);
      const data::Batch now = batch(i);
      losses.push_back((recorded ? steps_of(now) : step(*this, now)).to(Device{}).item());
      after(*this);
    }
    if (recorded && !on_cpu()) CHECK(steps_of.replays() > 4);
    for (const Parameter& parameter : model.parameters()) {
      const auto values = parameter.value().to_vector<float>();
      losses.insert(losses.end(), values.begin(), values.end());
    }
    return losses;
  }
};

Tensor whole_step(Program& p, const data::Batch& batch) {
  const Tensor loss = p.backward(batch);
  p.optimizer->step();
  p.optimizer->zero_grad();
  return loss;
}

void check_same(
    const std::function<void(Program&, int)>& change,
    const std::function<Tensor(Program&, const data::Batch&)>& step = whole_step,
    const std::function<void(Program&)>& after = [](Program&) {}) {
  Program plain, recorded;
  CHECK(recorded.run(true, change, step, after) == plain.run(false, change, step, after));
}

}  // namespace host_changes

using namespace host_changes;

TEST_CASE("recorded steps: parameters that are frozen and thawed") {
  check_same([](Program& p, int i) {
    if (i == 5 || i == 9)
      for (const Parameter& parameter : p.model.at<nn::Linear>("0").parameters())
        parameter.set_requires_grad(i == 9);
  });
}

TEST_CASE("recorded steps: a part of the model changes its mode") {
  check_same([](Program& p, int i) {
    if (i == 6) p.model.at<nn::BatchNorm>("1").eval();
    if (i == 10) p.model.train();
  });
}

TEST_CASE("recorded steps: an optimizer begins anew, or changes its options") {
  check_same([](Program& p, int i) {
    if (i == 7) p.optimizer->load_state_dict(p.first);
  });
  check_same([](Program& p, int i) {
    if (i == 7) p.optimizer->set_lr(0.01);
  });
}

TEST_CASE("recorded steps: what the program replaces, whose memory others then write to") {
  // The old memory is soon somebody else's.
  std::vector<Tensor> others;
  const auto write = [&] {
    for (int k = 0; k < 40; ++k)
      others.push_back(Tensor::full({6}, 1e30 + k, DType::f32, test_device()));
  };
  const auto new_teacher = [](int i) {
    manual_seed(static_cast<std::uint64_t>(i));
    nn::Sequential teacher;
    teacher.append(nn::Linear(5, 3));
    teacher.append(nn::Dropout(0.5));
    teacher.to(test_device());
    teacher.eval();
    return teacher;
  };
  check_same(
      [&](Program& p, int i) {
        if (i % 6 == 0) p.teacher = new_teacher(i);
        write();
      },
      [](Program& p, const data::Batch& batch) {
        Tape tape;
        const Tensor loss = mse(p.model(batch.x), p.teacher(batch.x).detach());
        tape.backward(loss, batch.weight);
        p.optimizer->step();
        p.optimizer->zero_grad();
        return loss.detach();
      });
  check_same([&](Program& p, int i) {
    if (i == 7)
      p.optimizer = std::make_unique<optim::SGD>(p.model.parameters(),
                                                 optim::SGD::Options{.lr = 0.05, .momentum = 0.5});
    write();
  });
  check_same(
      [&](Program& p, int i) {
        if (i == 7) p.added = Tensor::full({6}, 8, DType::f32, test_device());
        write();
      },
      [](Program& p, const data::Batch& batch) { return sum(mul(batch.x, p.added.slice(0, 5))); });
}

TEST_CASE("recorded steps: the optimizer's step outside of the recording") {
  // The gradient that the last step has left is there when the next begins, but for one.
  check_same(
      [](Program& p, int i) {
        if (i == 7) p.optimizer->zero_grad();
      },
      [](Program& p, const data::Batch& batch) {
        p.optimizer->zero_grad();
        return p.backward(batch);
      },
      [](Program& p) {
        (void)optim::clip_grad_norm(p.model.parameters(), 1.0);
        p.optimizer->step();
      });
  if (on_cpu()) return;
  Program p;
  nn::RecordedSteps leaves([&](const data::Batch& batch) { return p.backward(batch); });
  (void)leaves(Program::batch(0));
  p.optimizer->step();
  p.optimizer->zero_grad();
  CHECK_THROWS_WITH_AS(leaves(Program::batch(1)),
                       doctest::Contains("ends with one, which its replays would not do"),
                       StateError);
}

TEST_CASE("recorded steps: a recording that fails leaves all gradients as they were") {
  if (on_cpu()) return;
  const auto ones = [] { return Tensor::full({3}, 1, DType::f32, test_device()); };
  const Parameter a(ones(), "a"), b(ones(), "b");
  for (const bool waits : {false, true}) {
    CAPTURE(waits);
    StepGraph graph(
        [&] {
          Tape tape;
          const Tensor loss = sum(add(mul(a, a), mul(b, b)));
          tape.backward(loss);
          if (waits && StepGraph::recording()) (void)loss.item();
        },
        test_device());
    (void)graph();
    for (const Parameter& parameter : {a, b}) parameter.zero_grad();
    if (waits)
      CHECK_THROWS_AS(graph(), StateError);
    else
      CHECK_THROWS_WITH_AS(
          graph(), doctest::Contains("ends with one, which its replays would not do"), StateError);
    for (const Parameter& parameter : {a, b}) CHECK_FALSE(parameter.gradient().defined());
  }
}

TEST_CASE("recorded steps: a tensor of the program's that the step makes anew from itself") {
  if (on_cpu()) return;
  const Tensor x = Tensor::full({3}, 2, DType::f32, test_device());
  const auto refused = [&](const std::function<void(Tensor&)>& step) {
    Tensor total = Tensor::full({6}, 1, DType::f32, test_device()).slice(0, 3);
    StepGraph graph([&] { step(total); }, test_device());
    (void)graph();
    CHECK_THROWS_WITH_AS(graph(), doctest::Contains("the step puts something else in the place"),
                         StateError);
  };
  refused([&](Tensor& total) { total = add(total, x); });
  refused([&](Tensor& total) { total = mul(mul(x, x), mul(total, x)); });
  refused([&](Tensor& total) {
    const Tensor moved = std::move(total);
    total = add(moved, moved);
  });
  // These do what they did, each time.
  const Tensor total = Tensor::zeros({3}, DType::f32, test_device());
  Tensor last, made = add(x, x);
  StepGraph graph(
      [&] {
        total.copy_from(add(total, x));
        last = mul(total, x);
        const Tensor before = std::exchange(made, add(x, x));
      },
      test_device());
  for (int i = 1; i <= 4; ++i) {
    CHECK(graph() == (i > 1));
    CHECK(total.to_vector<float>() == std::vector<float>(3, static_cast<float>(2 * i)));
    CHECK(last.to_vector<float>()[2] == static_cast<float>(4 * i));
    CHECK(made.to_vector<float>()[2] == 4);
  }
}

// In a graph CUDA releases only what the graph has allocated.
TEST_CASE("recorded steps: memory from before that ends while a step is recorded") {
  if (on_cpu()) return;
  const auto fives = [] { return Tensor::full({1000}, 5, DType::f32, test_device()); };
  Tensor ends_here = fives(), ends_in_a_pause = fives(), ends_in_another_thread = fives();
  const Tensor x = fives();
  StepGraph graph(
      [&] {
        x.copy_from(mul(x, x));
        if (!StepGraph::recording()) return;
        ends_here = {};
        std::thread([&] { ends_in_another_thread = {}; }).join();
        const StepGraph::Pause pause;
        ends_in_a_pause = {};
      },
      test_device());
  for (int i = 0; i < 4; ++i) {
    x.fill(i);
    CHECK(graph() == (i > 0));
    CHECK(x.to_vector<float>()[999] == static_cast<float>(i * i));
  }
}

TEST_CASE("recorded steps: a plain step on another stream, behind the last replay") {
  if (on_cpu()) return;
  for (int repeat = 0; repeat < 30; ++repeat) {
    const Tensor x = Tensor::full({1000}, 1, DType::f32, test_device());
    StepGraph doubled([&] { x.copy_from(add(x, x)); }, test_device());
    for (int i = 0; i < 3; ++i) CHECK(doubled() == (i > 0));
    const Stream other = Stream::create(test_device());
    const StreamGuard guard(other);
    CHECK_FALSE(doubled());
    CHECK(x.to_vector<float>()[999] == 16);
  }
}

TEST_CASE("recorded steps: memory of another stream that ends behind the last replay") {
  if (on_cpu()) return;
  const Stream other = Stream::create(test_device());
  const auto on_other = [&](float value) {
    const StreamGuard guard(other);
    Tensor made = Tensor::full({1000}, value, DType::f32, test_device());
    other.synchronize();
    return made;
  };
  for (int repeat = 0; repeat < 30; ++repeat) {
    Tensor read = on_other(3);
    const Tensor sum = Tensor::full({1000}, 0, DType::f32, test_device());
    {
      StepGraph step([&] { sum.copy_from(add(sum, read)); }, test_device());
      for (int i = 0; i < 4; ++i) CHECK(step() == (i > 0));
      read = {};
    }
    const Tensor next = on_other(-1);
    CHECK(sum.to_vector<float>()[999] == 12);
  }
}
