#include "lockstep/nn/optim/ema.h"

#include <doctest/doctest.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/generator.h"
#include "lockstep/nn/layers.h"
#include "lockstep/nn/optim/optimizer.h"

using namespace lockstep;

TEST_CASE("ema: the weighted sum of all values so far, in closed form") {
  const Parameter w(Tensor::full({3}, 2, DType::f64), "w");
  optim::Ema ema({w}, 0.9);
  for (int i = 1; i <= 20; ++i) {
    w.value().fill(i);
    ema.update();
    double expected = 2 * std::pow(0.9, i);
    for (int k = 1; k <= i; ++k) expected += 0.1 * std::pow(0.9, i - k) * k;
    CHECK(ema.state_dict().at("w").to_vector<double>()[2] == doctest::Approx(expected));
  }
}

TEST_CASE("ema: applied while it is evaluated, and then the values are as they were") {
  nn::Sequential model{nn::Linear(2, 3)};
  optim::Ema ema(model.parameters(), 0.5);
  const auto weight = [&] { return model.state_dict().at("0.weight").to_vector<float>(); };
  const auto begin = weight();
  model.state_dict().at("0.weight").fill(4);
  ema.update();
  {
    const optim::Ema::Applied applied(ema);
    for (std::size_t i = 0; i < begin.size(); ++i)
      CHECK(weight()[i] == doctest::Approx(0.5 * begin[i] + 2));
    CHECK_THROWS_AS(ema.update(), StateError);
    CHECK_THROWS_AS(ema.state_dict(), StateError);
    CHECK_THROWS_AS(optim::Ema::Applied{ema}, StateError);
  }
  CHECK(weight() == std::vector<float>(6, 4));
  ema.update();
  for (std::size_t i = 0; i < begin.size(); ++i)
    CHECK(ema.state_dict().at("0.weight").to_vector<float>()[i] ==
          doctest::Approx(0.25 * begin[i] + 3));
}

TEST_CASE("ema: another one takes over its state; what makes no sense is refused") {
  nn::Sequential model{nn::Linear(2, 3)}, other{nn::Linear(2, 3)};
  optim::Ema ema(model.parameters(), 0.5), resumed(other.parameters(), 0.5);
  ema.update();
  resumed.load_state_dict(ema.state_dict());
  CHECK(resumed.state_dict().at("0.bias").to_vector<float>() ==
        ema.state_dict().at("0.bias").to_vector<float>());
  CHECK_THROWS_AS(optim::Ema(model.parameters(), 1), UsageError);
  // What does not change, has itself as its average.
  manual_seed(4);
  const Parameter w(Tensor::randn({1000}), "w");
  optim::Ema same({w}, 0.9999);
  for (int step = 0; step < 300; ++step) same.update();
  CHECK(same.state_dict().at("w").to_vector<float>() == w.value().to_vector<float>());
  {
    const optim::Ema::Applied applied(ema);
    CHECK_THROWS_WITH_AS(model.load_state_dict(model.state_dict()),
                         doctest::Contains("holds an Ema's average"), StateError);
  }
  CHECK_THROWS_AS(optim::Ema(model.parameters(), std::nan("")), UsageError);
  CHECK_THROWS_AS(optim::Ema({Parameter(Tensor::ones({1}))}, 0.5).state_dict(), StateError);
}

TEST_CASE("ema: what is applied goes back, whether its Ema has ended or was moved") {
  nn::Sequential model{nn::Linear(2, 3)};
  const auto weight = [&] { return model.state_dict().at("0.weight").to_vector<float>(); };
  const auto begin = weight();
  const auto check_ends = [&](const char* how, const auto& let_end) {
    CAPTURE(how);
    model.state_dict().at("0.weight").copy_from(Tensor::of<float>({3, 2}, begin));
    std::vector<optim::Ema> all;
    all.emplace_back(model.parameters(), 0.5);
    model.state_dict().at("0.weight").fill(4);
    all[0].update();
    std::optional<optim::Ema::Applied> applied(all[0]);
    CHECK(weight() != std::vector<float>(6, 4));
    let_end(all);
    CHECK(weight() != std::vector<float>(6, 4));
    applied.reset();
    CHECK(weight() == std::vector<float>(6, 4));
    for (const Parameter& parameter : model.parameters()) CHECK(!parameter.averaged());
    for (optim::Ema& ema : all)  // and it goes on
      if (ema.state_dict().contains("0.weight")) ema.update();
  };
  using All = std::vector<optim::Ema>;
  check_ends("end", [](All& all) { all.clear(); });
  check_ends("another place", [](All& all) {
    for (int i = 0; i < 9; ++i) all.emplace_back(nn::Linear(1, 1).parameters(), 0.5);
  });
  check_ends("move", [](All& all) {
    optim::Ema other = std::move(all[0]);
    all[0] = optim::Ema(nn::Linear(1, 1).parameters(), 0.5);
  });
}
