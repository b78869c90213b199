// What a recording that fails leaves behind: the state of before, a world that is whole, and no
// tensor whose memory is gone.

#include <doctest/doctest.h>

#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lockstep/autograd/rows.h"
#include "lockstep/lockstep.h"
#include "lockstep/nn/optim/optimizer.h"
#include "support/device.h"
#include "support/expect.h"

namespace lockstep::test::failed_recording {
namespace {

Tensor full(double value) { return Tensor::full({3}, value, DType::f32, test_device()); }

/// In a step: it fails while it is recorded.
void fail_if_recorded() {
  if (StepGraph::recording()) throw std::runtime_error("given up");
}

TEST_CASE("recorded steps: a tensor that a recording which failed has made anew") {
  if (on_cpu()) return;
  const Tensor x = full(2);
  Tensor total = full(1), last;
  StepGraph graph(
      [&] {
        last = mul(x, x);
        total = add(total, x);
      },
      test_device());
  (void)graph();
  CHECK_THROWS_WITH_AS(graph(), doctest::Contains("puts something else in the place"), StateError);
  for (const Tensor& made : {total, last}) {
    CHECK(made.defined());
    CHECK_THROWS_WITH_AS(made.to_vector<float>(),
                         doctest::Contains("made in a step whose recording failed"), StateError);
  }
  CHECK_THROWS_AS(graph(), StateError);  // it reads `total`
  total = full(1);
  CHECK_FALSE(graph());
  CHECK(total.to_vector<float>() == std::vector<float>(3, 3.0f));
  CHECK(last.to_vector<float>() == std::vector<float>(3, 4.0f));
}

// A parameter whose gradient the recording is the first to need.
TEST_CASE("recorded steps: a gradient's memory that a recording which failed has made") {
  if (on_cpu()) return;
  const Parameter w(full(1), "w"), late(full(1), "late");
  bool uses_late = false;
  Tensor memory;
  StepGraph graph(
      [&] {
        Tape tape;
        tape.backward(uses_late ? sum(add(mul(w, w), mul(late, late))) : sum(mul(w, w)));
        for (const Parameter& parameter : {w, late}) parameter.zero_grad();
        if (uses_late) memory = late.gradient_slot();
        fail_if_recorded();
      },
      test_device());
  (void)graph();
  uses_late = true;
  CHECK_THROWS_AS(graph(), std::runtime_error);
  CHECK_FALSE(late.gradient_slot().storage() == memory.storage());
  Tape tape;
  tape.backward(sum(mul(late, late)));
  CHECK(late.gradient().to_vector<float>() == std::vector<float>(3, 2.0f));
}

TEST_CASE("recorded steps: a recording that fails leaves a checkpoint possible") {
  if (on_cpu()) return;
  const Parameter w(full(1), "w");
  optim::SGD sgd({w}, {.lr = 0.0625, .momentum = 0.5});
  StepGraph graph(
      [&] {
        w.zero_grad();
        Tape tape;
        tape.backward(sum(mul(w, w)));
        if (StepGraph::recording()) (void)w.value().to_vector<float>();
      },
      test_device());
  (void)graph();
  sgd.step();
  CHECK_THROWS_AS(graph(), StateError);
  CHECK_FALSE(w.unstepped());
  (void)sgd.state_dict();
}

TEST_CASE("recorded steps: a recording that fails loses no gradient for a checkpoint") {
  if (on_cpu()) return;
  const Parameter w(full(1), "w");
  optim::SGD sgd({w}, {.lr = 0.0625});
  const auto backward = [&] {
    sgd.zero_grad();
    Tape tape;
    tape.backward(sum(mul(w, w)));
  };
  StepGraph graph(
      [&] {
        sgd.step();
        fail_if_recorded();
      },
      test_device());
  backward();
  (void)graph();
  backward();
  CHECK_THROWS_AS(graph(), std::runtime_error);
  CHECK(w.unstepped());
  CHECK_THROWS_AS((void)sgd.state_dict(), StateError);
}

// Where CUDA refuses what was recorded, the function has ended well.
TEST_CASE("recorded steps: a recording that fails when its function has ended") {
  if (on_cpu()) return;
  const Stream side = Stream::create(test_device());
  const Parameter w(full(1), "w");
  optim::SGD sgd({w}, {.lr = 0.0625});
  Tensor last;
  StepGraph graph(
      [&] {
        last = mul(w.value(), w.value());
        sgd.step();
        if (!StepGraph::recording()) return;
        const Event fork(test_device());
        fork.record(Stream::current(test_device()));
        side.wait(fork);
        const StreamGuard guard(side);
        w.value().fill(5);  // nobody waits for it
      },
      test_device());
  const auto backward = [&] {
    sgd.zero_grad();
    Tape tape;
    tape.backward(sum(mul(w, w)));
  };
  backward();
  (void)graph();
  backward();
  CHECK_THROWS_AS(graph(), DeviceError);
  CHECK(w.unstepped());
  CHECK_THROWS_AS(last.to_vector<float>(), StateError);
}

TEST_CASE("recorded steps: a recording that fails leaves a Schedule where it was") {
  if (on_cpu()) return;
  const Parameter w(full(1), "w");
  optim::SGD sgd({w}, {.lr = 1});
  optim::Schedule schedule(sgd, [](std::int64_t step) { return step < 3 ? 1.0 : 0.5; });
  StepGraph graph(
      [&] {
        Tape tape;
        tape.backward(sum(mul(w, w)));
        sgd.step();
        sgd.zero_grad();
        schedule.step();
        fail_if_recorded();
      },
      test_device());
  (void)graph();
  REQUIRE(schedule.steps() == 1);
  CHECK_THROWS_WITH_AS(graph(), "given up", std::runtime_error);
  CHECK(schedule.steps() == 1);
  CHECK_FALSE(graph());
  CHECK(schedule.steps() == 2);
  CHECK(sgd.lr() == 1);
  CHECK_FALSE(graph());
  CHECK(schedule.steps() == 3);
  CHECK(sgd.lr() == 0.5);
}

TEST_CASE("GPU DDP: a recording that fails, and the optimizer's step behind it") {
  if (on_cpu()) return;
  const auto train = [](World& world) {
    const Parameter w(full(2), "w");
    optim::SGD sgd({w}, {.lr = 0.0625});
    dist::DistributedDataParallel ddp({w}, {}, world);
    StepGraph graph(
        [&] {
          sgd.step();
          fail_if_recorded();
        },
        test_device());
    const auto backward = [&] {
      sgd.zero_grad();
      Tape tape;
      tape.backward(sum(mul(w, w)), Weight{1, static_cast<double>(world.size())});
    };
    backward();
    (void)graph();
    backward();
    expect_error<std::runtime_error>("given up", [&] { (void)graph(); });
    sgd.step();  // on what that backward has synchronized
    expect_error<StateError>("nothing was synchronized", [&] { sgd.step(); });
    backward();
    sgd.step();
    ddp.check_replicas();
  };
  for (const int ranks : {1, 2}) run_threads(ranks, {.transport = "ipc"}, train);
}

/// One reason for which DDP refuses a recording.
struct Refused {
  const char* message;
  dist::DdpOptions options;
  std::function<void(const Parameter& w, const Parameter& other)> backward;
};

void backward_of(const Tensor& loss, BackwardOptions options = {}) {
  Tape::current()->backward(loss, Weight{1, 2}, options);
}

TEST_CASE("GPU DDP: a refused recording leaves the world whole") {
  if (on_cpu()) return;
  const auto uses_one = [](const Parameter& w, const Parameter&) {
    Tape tape;
    backward_of(sum(mul(w, w)));
  };
  const auto uses_both = [](const Parameter& w, const Parameter& other) {
    Tape tape;
    backward_of(sum(mul(w, other)));
  };
  const auto two_parts = [](const Parameter& w, const Parameter& other) {
    for (const bool sync : {false, true}) {
      Tape tape;
      backward_of(sum(mul(w, other)), {.sync = sync});
    }
  };
  const auto reads = [](const Parameter& w, const Parameter& other) {
    Tape tape;
    const Tensor y = mul(w, other);
    const Tensor z = record("reader", y.detach().clone(), {apart(y)}, [](Gradients& g) {
      (void)g.output().to_vector<float>();
      const auto into = g.into(0);
      into.tensor.copy_from(g.output());
    });
    backward_of(sum(z));
  };
  const auto reads_behind = [&](const Parameter& w, const Parameter& other) {
    uses_both(w, other);
    (void)w.value().to_vector<float>();
  };
  const Refused all[] = {
      {"every parameter must be used, 'other' is not", {}, uses_one},
      {"gradients cannot be accumulated", {}, two_parts},
      {"nobody can look for infinite gradients", {.nonfinite = dist::NonFinite::skip}, uses_both},
      {"nothing can be read on the host", {}, reads},
      {"nothing can be read on the host", {}, reads_behind},
  };
  for (const Refused& one : all) {
    CAPTURE(one.message);
    run_threads(2, {.transport = "ipc", .timeout = dist::Seconds(10)}, [&one](World& world) {
      const Parameter w(full(2), "w"), other(full(3), "other");
      dist::DistributedDataParallel ddp({w, other}, {}, world, one.options);
      const auto step = [&] {
        one.backward(w, other);
        for (const Parameter& parameter : {w, other}) parameter.zero_grad();
      };
      StepGraph graph(step, test_device());
      (void)graph();
      for (int i = 0; i < 2; ++i) {
        expect_error<StateError>(one.message, [&] { (void)graph(); });
        (void)graph();  // as it is
        step();
      }
      ddp.check_replicas();
    });
  }
}

}  // namespace
}  // namespace lockstep::test::failed_recording
