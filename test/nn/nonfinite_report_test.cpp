// NonFinite::report, the default: a step that leaves a parameter infinite or NaN stops training in
// the next backward that synchronizes, on all ranks, by name.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "lockstep/lockstep.h"
#include "support/expect.h"

using namespace lockstep;
using lockstep::test::expect;
using lockstep::test::expect_error;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

/// How a run comes to a number that is not finite, in step 3.
struct BadStep {
  const char* name;
  const char* says;
  std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Parameter>&)> optimizer;
  std::function<double(int rank, int step)> factor;  // on the loss
};

const std::vector<BadStep>& bad_steps() {
  const auto sgd = [](const std::vector<Parameter>& parameters) {
    return std::make_unique<optim::SGD>(parameters, optim::SgdOptions{.lr = 0.1, .momentum = 0.9});
  };
  const auto adam = [](const std::vector<Parameter>& parameters) {
    return std::make_unique<optim::Adam>(parameters, optim::AdamOptions{.lr = 0.1});
  };
  static const std::vector<BadStep> all = {
      {"NaN in the last rank's loss", "'a'", sgd,
       [](int rank, int step) { return rank == 0 && step == 3 ? std::nan("") : 1; }},
      {"an infinite gradient under Adam", "'a'", adam,
       [](int rank, int step) { return rank == 0 && step == 3 ? inf : 1; }},
      {"a step that is too large", "'a'", sgd, [](int, int step) { return step == 3 ? 5e37 : 1; }},
  };
  return all;
}

/// a is used by every loss; b, which is larger and not used, keeps its value.
struct Watched {
  Watched(World& world, const BadStep& bad, dist::DdpOptions options = {})
      : world(world), bad(bad), optimizer(bad.optimizer({a, b})) {
    ddp.emplace(std::vector{a, b}, std::vector<Buffer>{}, world, options);
  }
  void backward(int step) {
    Tape tape;
    const Tensor x = Tensor::of<float>({5}, {1, 2, 3, 4, 500});
    tape.backward(sum(a * x * bad.factor(world.rank(), step)));
  }
  void step(int i) {
    optimizer->zero_grad();
    backward(i);
    optimizer->step();
  }
  World& world;
  const BadStep& bad;
  Parameter a{Tensor::full({5}, 1), "a"}, b{Tensor::full({40}, 2), "b"};
  std::unique_ptr<optim::Optimizer> optimizer;
  std::optional<dist::DistributedDataParallel> ddp;
};

}  // namespace

TEST_CASE("nonfinite: the backward after the bad step stops all ranks and names the parameter") {
  for (const BadStep& bad : bad_steps())
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(bad.name);
      CAPTURE(ranks);
      run_threads(ranks, {}, [&](World& world) {
        Watched run(world, bad);
        for (int i = 0; i < 4; ++i) run.step(i);
        expect(!std::isfinite(run.a.value().to_vector<float>()[4]), "step 3 has gone wrong");
        expect_error<StateError>("of 'a' has become infinite or NaN", [&] { run.step(4); });
      });
    }
}

TEST_CASE("nonfinite: the first bad element, counted in the parameter") {
  // Only the last element overflows.
  const BadStep& bad = bad_steps()[2];
  run_threads(2, {}, [&](World& world) {
    Watched run(world, bad);
    run.a.value().fill(0);
    for (int i = 0; i < 4; ++i) run.step(i);
    expect_error<StateError>("element 4 of 'a'", [&] { run.step(4); });
  });
}

TEST_CASE("nonfinite: after windows, compressed gradients, without comparing") {
  using Change = std::function<void(dist::DdpOptions&)>;
  const BadStep& bad = bad_steps()[0];
  for (const auto& [name, change] : std::vector<std::pair<const char*, Change>>{
           {"bf16", [](auto& options) { options.hook = dist::compress(DType::bf16); }},
           {"not compared", [](auto& options) { options.check_replicas = false; }},
           {"deferred", [](auto& options) { options.deferred = true; }}}) {
    CAPTURE(name);
    run_threads(2, {}, [&](World& world) {
      dist::DdpOptions options;
      change(options);
      Watched run(world, bad, options);
      for (int i = 0; i < 4; ++i) run.step(i);
      expect_error<StateError>("of 'a' has become infinite or NaN", [&] { run.step(4); });
    });
  }
  run_threads(2, {}, [&](World& world) {
    Watched run(world, bad);
    for (int i = 0; i < 4; ++i) run.step(i);
    {
      const dist::NoSync accumulating = run.ddp->no_sync();
      run.optimizer->zero_grad();
      run.backward(4);  // the ranks do not meet here
    }
    expect_error<StateError>("of 'a' has become infinite or NaN", [&] { run.backward(5); });
  });
}

TEST_CASE("nonfinite: who repairs the parameter may go on; who asks to ignore it is not told") {
  const BadStep& bad = bad_steps()[0];
  run_threads(2, {}, [&](World& world) {
    Watched run(world, bad);
    for (int i = 0; i < 4; ++i) run.step(i);
    expect_error<StateError>("infinite or NaN", [&] { run.step(4); });
    run.a.value().fill(1);
    run.optimizer->forget(run.a);
    for (int i = 5; i < 8; ++i) run.step(i);
    expect(std::isfinite(run.a.value().to_vector<float>()[0]), "all is well");
  });
  run_threads(2, {}, [&](World& world) {
    Watched run(world, bad, {.nonfinite = dist::NonFinite::ignore});
    for (int i = 0; i < 8; ++i) run.step(i);
    expect(std::isnan(run.a.value().to_vector<float>()[0]), "nobody has said anything");
  });
}

TEST_CASE("nonfinite: a parameter that is infinite or NaN is not saved") {
  run_threads(2, {}, [&](World& world) {
    Watched run(world, bad_steps()[0]);
    bool saved = false;
    const auto save = [&] { run.ddp->save_on_rank0([&] { saved = true; }); };
    for (int i = 0; i < 3; ++i) run.step(i);
    save();
    expect(saved == (world.rank() == 0), "a good one is saved");
    saved = false;
    run.step(3);
    expect_error<StateError>("of 'a' has become infinite or NaN", save);
    expect(!saved, "a bad one is not");
  });
}
