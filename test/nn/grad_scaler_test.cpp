#include "lockstep/nn/optim/grad_scaler.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "lockstep/lockstep.h"
#include "support/expect.h"

using namespace lockstep;
using lockstep::test::expect;
using lockstep::test::expect_error;

namespace {

const nlohmann::json& stored_runs() {
  static const nlohmann::json all = nlohmann::json::parse(
      std::ifstream(LOCKSTEP_SOURCE_DIR "/test/reference/optim/grad_scaler.json"));
  return all;
}

Tensor sines(Shape shape, double phase) {
  std::vector<float> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t k = 0; k < values.size(); ++k)
    values[k] = static_cast<float>(std::sin(1.7 * static_cast<double>(k) + phase));
  return Tensor::of<float>(shape, values);
}

bool overflows_at(int step) {
  const auto all = stored_runs().at("overflows").get<std::vector<int>>();
  return std::ranges::count(all, step) > 0;
}

/// The run of make_grad_scaler.py, of which this rank takes its rows.
struct ScaledRun {
  explicit ScaledRun(World& world, bool clip, dist::DdpOptions options = {})
      : world(world), clip(clip) {
    model.parameters()[0].value().copy_from(sines({2, 3}, 0.3));
    model.parameters()[1].value().copy_from(sines({2}, 0.9));
    ddp.emplace(model.parameters(), model.buffers(), world, options);
  }

  void step(int i) {
    Tensor x = sines({4, 3}, 0.1 * i), y = sines({4, 2}, 5 + 0.1 * i);
    if (overflows_at(i)) y.data<float>()[3] = 1e38f;
    const std::int64_t begin = 4 * world.rank() / world.size();
    const std::int64_t end = 4 * (world.rank() + 1) / world.size();
    Tape tape;
    const Tensor loss = nn::mse(model(x.slice(begin, end)), y.slice(begin, end));
    tape.backward(scaler.scale(loss), Weight{static_cast<double>(end - begin), 4.0});
    if (clip) {
      scaler.unscale(optimizer);
      optim::clip_grad_norm(model.parameters(), 0.2);
    }
    expect(scaler.step(optimizer) != overflows_at(i), "step {}", i);
    scaler.update();
    optimizer.zero_grad();
  }

  World& world;
  bool clip;
  nn::Sequential model{nn::Linear(3, 2)};
  optim::SGD optimizer{model.parameters(), {.lr = 0.1, .momentum = 0.9}};
  optim::GradScaler scaler{{.scale = 1024, .growth_interval = 4}};
  std::optional<dist::DistributedDataParallel> ddp;
};

// After step i: the stored scale, and the stored weights to rounding.
void expect_as_stored(ScaledRun& run, const char* name, std::size_t i) {
  const auto& stored = stored_runs().at(name);
  expect(run.scaler.scale() == stored.at("scales").at(i).get<double>(), "step {}: the scale is {}",
         i, run.scaler.scale());
  const auto weights = run.model.parameters()[0].value().to_vector<float>();
  for (std::size_t k = 0; k < weights.size(); ++k) {
    const double expected = stored.at("weights").at(i).at(k).get<double>();
    expect(std::abs(weights[k] - expected) < 2e-6, "step {}, weight {}: {} for {}", i, k,
           weights[k], expected);
  }
}

}  // namespace

TEST_CASE("grad scaler: PyTorch's scale and weights for 50 steps, on 1 to 4 ranks") {
  for (const int ranks : {1, 2, 3, 4})
    for (const bool clip : {false, true}) {
      CAPTURE(ranks);
      CAPTURE(clip);
      run_threads(ranks, {}, [&](World& world) {
        ScaledRun run(world, clip);
        for (int i = 0; i < 50; ++i) {
          run.step(i);
          expect_as_stored(run, clip ? "clipped" : "plain", static_cast<std::size_t>(i));
        }
      });
    }
}

TEST_CASE("grad scaler: beside NonFinite::skip, under which the reducer gives the step up") {
  run_threads(2, {}, [&](World& world) {
    ScaledRun run(world, false, {.nonfinite = dist::NonFinite::skip});
    for (int i = 0; i < 20; ++i) {
      run.step(i);
      expect_as_stored(run, "plain", static_cast<std::size_t>(i));
    }
  });
}

TEST_CASE("grad scaler: parameters of which each rank has its own are refused beside others") {
  run_threads(2, {}, [&](World& world) {
    const Parameter w(Tensor::full({2}, 1.0), "w"), own(Tensor::full({2}, 1.0), "own");
    own.keep_local();
    dist::DistributedDataParallel ddp({w}, {}, world);
    optim::SGD optimizer({w, own}, {.lr = 1});
    optim::GradScaler scaler;
    Tape tape;
    tape.backward(scaler.scale(sum(Tensor(w) * Tensor(own))));
    expect_error<StateError>("own", [&] { scaler.step(optimizer); });
  });
}

TEST_CASE("grad scaler: another one goes on from its state") {
  run_threads(1, {}, [&](World& world) {
    ScaledRun run(world, false);
    for (int i = 0; i < 50; ++i) {
      if (i % 7 == 6) {
        const nn::StateDict state = run.scaler.state_dict();
        run.scaler = optim::GradScaler({.scale = 3, .growth_interval = 4});
        run.scaler.load_state_dict(state);
      }
      run.step(i);
      expect_as_stored(run, "plain", static_cast<std::size_t>(i));
    }
  });
}

TEST_CASE("grad scaler: what makes no sense is refused") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const optim::GradScalerOptions& options :
       std::vector<optim::GradScalerOptions>{{.scale = 0},
                                             {.scale = -1},
                                             {.scale = std::nan("")},
                                             {.scale = 1e39},
                                             {.growth_factor = 1},
                                             {.growth_factor = infinity},
                                             {.growth_interval = 0},
                                             {.backoff_factor = 0},
                                             {.backoff_factor = 1},
                                             {.backoff_factor = std::nan("")}})
    CHECK_THROWS_AS(optim::GradScaler{options}, UsageError);

  const Parameter w(Tensor::ones({2}), "w");
  optim::SGD optimizer({w}, {.lr = 0.1});
  optim::GradScaler scaler({.scale = 2});
  const auto backward = [&](double x) {
    optimizer.zero_grad();
    Tape tape;
    tape.backward(scaler.scale(sum(w * x)));
  };
  CHECK_THROWS_AS(scaler.update(), StateError);
  backward(1);
  scaler.unscale(optimizer);
  CHECK(w.gradient().to_vector<float>() == std::vector<float>{1, 1});
  CHECK_THROWS_AS(scaler.unscale(optimizer), StateError);
  CHECK(scaler.step(optimizer));
  CHECK_THROWS_AS(scaler.step(optimizer), StateError);
  scaler.update();
  CHECK_THROWS_AS(scaler.update(), StateError);
  expect_error<StateError>("infinite or NaN at every scale", [&] {
    for (int i = 0; i < 200; ++i) {
      backward(infinity);
      scaler.step(optimizer);
      scaler.update();
    }
  });
  CHECK_THROWS_AS(scaler.load_state_dict({}), StateError);

  run_threads(2, {}, [&](World& world) {
    ScaledRun run(world, false);
    Tape tape;
    tape.backward(run.scaler.scale(sum(run.model(Tensor::ones({1, 3})))), Weight{1},
                  {.sync = false});
    expect_error<StateError>("'0.weight' is not synchronized",
                             [&] { run.scaler.step(run.optimizer); });
    run.ddp->synchronize();
  });
}

TEST_CASE("grad scaler: losses in 16 bits are scaled in f32, those in f64 stay f64") {
  const optim::GradScaler scaler;
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32})
    CHECK(scaler.scale(Tensor::ones({}, dtype)).dtype() == DType::f32);
  CHECK(scaler.scale(Tensor::ones({}, DType::f16)).item() == 65536);
  CHECK(scaler.scale(Tensor::ones({}, DType::f64)).dtype() == DType::f64);
}

TEST_CASE("grad scaler: the scale grows as far as f32 goes, and is never infinite") {
  const Parameter w(Tensor::ones({2}), "w");
  optim::SGD optimizer({w}, {.lr = 0.1});
  optim::GradScaler scaler({.scale = 0x1p125, .growth_interval = 1});
  for (const double expected : {0x1p126, 0x1p127, 0x1p127, 0x1p127}) {
    optimizer.zero_grad();
    Tape tape;
    tape.backward(scaler.scale(sum(w * 0.0)));
    CHECK(scaler.step(optimizer));
    scaler.update();
    CHECK(scaler.scale() == expected);
  }
}

TEST_CASE("grad scaler: an optimizer that ends before update() counts, and is no other one") {
  for (const bool finite : {true, false}) {
    optim::GradScaler scaler({.scale = 8, .growth_interval = 100});
    const Parameter w(Tensor::ones({2}), "w");
    const auto backward = [&](double x) {
      Tape tape;
      tape.backward(scaler.scale(sum(w * x)));
    };
    {  // one after another, at the same place
      std::optional<optim::SGD> optimizer;
      for (int run = 0; run < 3; ++run) {
        optimizer.emplace(std::vector{w}, optim::SgdOptions{.lr = 0.1});
        optimizer->zero_grad();
        backward(finite || run != 1 ? 1 : std::numeric_limits<double>::infinity());
        if (run == 2) scaler.unscale(*optimizer);
        CHECK(scaler.step(*optimizer) == (finite || run != 1));
        CHECK_THROWS_AS(scaler.step(*optimizer), StateError);
      }
    }
    CHECK_THROWS_AS(scaler.state_dict(), StateError);
    scaler.update();
    CHECK(scaler.scale() == (finite ? 8 : 4));
    CHECK(scaler.state_dict().at("steady").item() == (finite ? 1 : 0));
    CHECK_THROWS_AS(scaler.update(), StateError);
  }
}

TEST_CASE("grad scaler: a scale that f32 does not have is not loaded") {
  optim::GradScaler scaler({.scale = 8});
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double scale : {1e300, 1e39, 1e-60, 5e-324, 0.0, -1.0, infinity, std::nan("")}) {
    CAPTURE(scale);
    nn::StateDict state = scaler.state_dict();
    state.at("scale") = Tensor::scalar(scale, DType::f64);
    state.at("steady") = Tensor::scalar(7, DType::i64);
    CHECK_THROWS_WITH_AS(scaler.load_state_dict(state), doctest::Contains("scale must be in"),
                         UsageError);
    CHECK(scaler.scale() == 8);
    CHECK(scaler.state_dict().at("steady").item() == 0);
  }
}
