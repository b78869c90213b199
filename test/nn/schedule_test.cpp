#include "lockstep/nn/optim/schedule.h"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/nn/checkpoint/checkpoint.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

namespace {

const nlohmann::json& stored_rates() {
  static const nlohmann::json all = nlohmann::json::parse(
      std::ifstream(LOCKSTEP_SOURCE_DIR "/test/reference/optim/schedules.json"));
  return all;
}

optim::SGD one_weight(double lr = 0.8) {
  return optim::SGD({Parameter(Tensor::zeros({1}), "w")}, {.lr = lr});
}

}  // namespace

TEST_CASE("schedules: PyTorch's learning rates for 60 steps") {
  const std::vector<std::int64_t> milestones{5, 20, 21};
  const std::vector<std::pair<const char*, std::function<double(std::int64_t)>>> all = {
      {"step_decay", [](auto i) { return optim::step_decay(i, 7, 0.3); }},
      {"exponential", [](auto i) { return optim::step_decay(i, 1, 0.93); }},
      {"multi_step_decay", [&](auto i) { return optim::multi_step_decay(i, milestones, 0.5); }},
      {"warm_up", [](auto i) { return optim::warm_up(i, 11, 0.05); }},
      {"cosine", [](auto i) { return optim::cosine(i, 59, 0.1); }},
      {"one_cycle", [](auto i) { return optim::one_cycle(i, 61); }},
      {"one_cycle, other options",
       [](auto i) {
         return optim::one_cycle(i, 61, {.rising = 0.45, .div_factor = 10, .final_div_factor = 50});
       }},
      {"warm_up * cosine",
       [](auto i) { return optim::warm_up(i, 11, 0.05) * optim::cosine(i, 59, 0.1); }},
  };
  for (const auto& [name, factor] : all) {
    CAPTURE(name);
    auto optimizer = one_weight();
    optim::Schedule schedule(optimizer, factor);
    for (const double rate : stored_rates().at(name)) {
      CHECK(optimizer.lr() == doctest::Approx(rate).epsilon(1e-12));
      schedule.step();
    }
    CHECK(schedule.steps() == 60);
  }
}

TEST_CASE("schedules: a plateau as PyTorch's, also when it is resumed in the middle") {
  const auto losses = stored_rates().at("losses").get<std::vector<double>>();
  const auto rates = stored_rates().at("plateau").get<std::vector<double>>();
  CHECK(rates.back() < 0.1 * rates.front());
  for (const std::size_t cut : {std::size_t{0}, std::size_t{17}, std::size_t{31}}) {
    auto first = one_weight(), second = one_weight();
    const optim::PlateauOptions options{.factor = 0.5, .patience = 3, .threshold = 0.01};
    optim::Plateau before(first, options), after(second, options);
    for (std::size_t i = 0; i < losses.size(); ++i) {
      if (i == cut) {
        second.load_state_dict(first.state_dict());
        after.load_state_dict(before.state_dict());
      }
      CHECK((i < cut ? first : second).lr() == doctest::Approx(rates[i]).epsilon(1e-12));
      (i < cut ? before : after).step(losses[i]);
    }
  }
}

TEST_CASE("schedules: each group keeps its own rate; a checkpoint resumes all of it") {
  const TemporaryFolder folder;
  const auto make = [](double a, double b) {
    return optim::SGD({{{Parameter(Tensor::zeros({1}), "a")}, {.lr = a}},
                       {{Parameter(Tensor::zeros({1}), "b")}, {.lr = b}}});
  };
  const auto factor = [](std::int64_t step) { return optim::step_decay(step, 2, 0.5); };
  const auto rates = [](optim::SGD& optimizer) {
    return std::pair(optimizer.groups()[0].options.lr, optimizer.groups()[1].options.lr);
  };
  auto first = make(0.1, 0.3), second = make(9, 9);
  optim::Schedule schedule(first, factor);
  for (int i = 0; i < 5; ++i) schedule.step();
  CHECK(rates(first) == std::pair(0.1 * 0.25, 0.3 * 0.25));
  const auto add = [](nn::Checkpoint& run, optim::SGD& optimizer, optim::Schedule& s) {
    run.add("optimizer", optimizer);
    run.add("schedule", s);
  };
  nn::Checkpoint saved, loaded;
  add(saved, first, schedule);
  saved.save(folder / "run");
  optim::Schedule resumed(second, factor);
  add(loaded, second, resumed);
  loaded.load(folder / "run");
  CHECK(resumed.steps() == 5);
  resumed.step();
  CHECK(rates(second) == std::pair(0.1 * 0.125, 0.3 * 0.125));
  second.add_param_group({Parameter(Tensor::zeros({1}), "c")}, {.lr = 0.7});
  resumed.step();
  CHECK(second.groups()[2].options.lr == 0.7 * 0.125);
}

TEST_CASE("schedules: beyond the last step the rate stays what it was there") {
  for (const std::int64_t steps : {2, 5, 40})
    for (const std::int64_t more : {std::int64_t{1}, std::int64_t{3}, steps, 2 * steps}) {
      CHECK(optim::warm_up(steps + more, steps, 0.25) == 1);
      CHECK(optim::cosine(steps + more, steps, 0.125) == 0.125);
      const optim::OneCycle cycle{.rising = 0.3};
      CHECK(optim::one_cycle(steps - 1 + more, steps, cycle) ==
            optim::one_cycle(steps - 1, steps, cycle));
    }
}

TEST_CASE("schedules: what makes no sense is refused, with its value") {
  auto optimizer = one_weight();
  CHECK_THROWS_WITH_AS(optim::step_decay(-1, 3), "[step_decay] step -1; steps count from 0",
                       UsageError);
  CHECK_THROWS_AS(optim::step_decay(1, 0), UsageError);
  CHECK_THROWS_AS(optim::warm_up(1, 0), UsageError);
  CHECK_THROWS_AS(optim::cosine(1, 0), UsageError);
  CHECK_THROWS_AS(optim::one_cycle(1, 1), UsageError);
  CHECK(optim::one_cycle(0, 2, {.rising = 0.5}) == 1);  // there is no way up
  CHECK_THROWS_AS(optim::one_cycle(1, 9, {.rising = 1}), UsageError);
  CHECK_THROWS_WITH_AS(optim::Schedule(optimizer, [](std::int64_t) { return -0.5; }),
                       "[Schedule] factor must be in [0, inf), got -0.5", UsageError);
  CHECK_THROWS_AS(optim::Plateau(optimizer, {.factor = 1}), UsageError);
  CHECK_THROWS_AS(optim::Plateau(optimizer, {.patience = -1}), UsageError);
  CHECK_THROWS_AS(optim::Plateau(optimizer, {.threshold = std::nan("")}), UsageError);
  CHECK_THROWS_AS(optim::Plateau(optimizer).step(std::nan("")), UsageError);
}
