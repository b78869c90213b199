// What is not given with a group is what the optimizer was made with, as in torch.optim: values
// stored by test/reference/optim/make_groups.py.

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/lockstep.h"
#include "support/temporary_folder.h"

using namespace lockstep;

namespace {

const nlohmann::json& stored_groups(const std::string& name) {
  static const nlohmann::json all =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/test/reference/optim/groups.json"));
  return all.at(name);
}

Parameter group_member(const char* name, std::vector<double> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return Parameter(Tensor::of<double>({n}, std::move(values)), name);
}

/// The program of make_groups.py; `end(optimizer)` sees what is left.
template <class O>
void check_groups(
    const std::string& name, typename O::Options options, typename O::Given other,
    const std::function<void(O&)>& end = [](O&) {}) {
  CAPTURE(name);
  const Parameter a = group_member("a", {1, -2, 3}), b = group_member("b", {4, -5});
  const Parameter c = group_member("c", {0.5, 6}), d = group_member("d", {-7, 0.25});
  O optimizer({{{a}, {}}, {{b}, {.lr = 0.02}}}, options);
  for (int step = 0; step < 6; ++step) {
    if (step == 2) optimizer.add_param_group({c}, {.lr = 0.03});
    if (step == 4) {
      optimizer.set_lr(0.05);
      optimizer.add_param_group({d}, other);
    }
    Tape tape;
    Tensor loss = Tensor::zeros({}, DType::f64);
    for (const Parameter& p : optimizer.all()) loss = loss + std::sin(step + 1.0) * sum(p * p);
    tape.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
  }
  std::size_t i = 0;
  for (const Parameter& p : {a, b, c, d}) {
    CAPTURE(p.name());
    const auto want = stored_groups(name).at(i++).get<std::vector<double>>();
    const auto got = p.value().to_vector<double>();
    REQUIRE(got.size() == want.size());
    for (std::size_t k = 0; k < want.size(); ++k)
      CHECK(got[k] == doctest::Approx(want[k]).epsilon(1e-12));
  }
  end(optimizer);
}

}  // namespace

TEST_CASE("groups: an option that is not given is the optimizer's, as in PyTorch") {
  using namespace optim;
  check_groups<SGD>("SGD", {.lr = 0.1, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.05},
                    {.momentum = 0.5});
  check_groups<SGD>("SGD, Nesterov",
                    {.lr = 0.1, .momentum = 0.9, .nesterov = true, .maximize = true},
                    {.weight_decay = 0.2});
  check_groups<Adam>(
      "Adam",
      {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.01, .weight_decay = 0.05, .amsgrad = true},
      {.maximize = true});
  check_groups<AdamW>(
      "AdamW",
      {.lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.01, .weight_decay = 0.2, .amsgrad = true},
      {.weight_decay = 0});
  check_groups<RMSprop>("RMSprop",
                        {.lr = 0.1,
                         .alpha = 0.8,
                         .eps = 0.5,
                         .weight_decay = 0.05,
                         .momentum = 0.6,
                         .centered = true},
                        {.centered = false});
  check_groups<Lion>("Lion", {.lr = 0.1, .beta1 = 0.7, .beta2 = 0.8, .weight_decay = 0.3},
                     {.maximize = true});
}

TEST_CASE("groups: each option can be given alone, and the others stay") {
  using optim::Adam;
  const Parameter a = group_member("a", {1}), b = group_member("b", {2});
  const Adam::Options made{.lr = 0.5,
                           .beta1 = 0.1,
                           .beta2 = 0.2,
                           .eps = 0.3,
                           .weight_decay = 0.4,
                           .amsgrad = true,
                           .maximize = true,
                           .decoupled = true};
  const auto check_one = [&](Adam::Given given, auto member, auto value) {
    Adam optimizer({a}, made);
    optimizer.add_param_group({b}, given);
    Adam::Options want = made;
    want.*member = value;
    CHECK(want != made);
    CHECK(optimizer.groups()[1].options == want);
    CHECK(optimizer.groups()[0].options == made);
  };
  using Options = Adam::Options;
  check_one({.lr = 0}, &Options::lr, 0);
  check_one({.beta1 = 0}, &Options::beta1, 0);
  check_one({.beta2 = 0.5}, &Options::beta2, 0.5);
  check_one({.eps = 0.5}, &Options::eps, 0.5);
  check_one({.weight_decay = 0}, &Options::weight_decay, 0);
  check_one({.amsgrad = false}, &Options::amsgrad, false);
  check_one({.maximize = false}, &Options::maximize, false);
  check_one({.decoupled = false}, &Options::decoupled, false);
}

TEST_CASE("groups: what all groups have is checked, also together with what is given") {
  const Parameter a = group_member("a", {1}), b = group_member("b", {2});
  using Groups = std::vector<optim::Group<optim::SGD::Given>>;
  CHECK_THROWS_WITH_AS(optim::SGD(Groups{{{a}, {.lr = 0.1}}}, {.lr = -1}),
                       "[SGD] lr must be in [0, inf), got -1", UsageError);
  optim::SGD nesterov({a}, {.momentum = 0.9, .nesterov = true});
  CHECK_THROWS_WITH_AS(nesterov.add_param_group({b}, {.momentum = 0}),
                       doctest::Contains("nesterov needs momentum > 0"), UsageError);
  CHECK(nesterov.group_views().size() == 1);
  nesterov.add_param_group({b});
  CHECK(nesterov.groups()[1].options == nesterov.groups()[0].options);
}

TEST_CASE("groups: options that make no sense change nothing; corrected, the step is taken") {
  const Parameter a = group_member("a", {1});
  optim::SGD optimizer({a}, {.lr = 1});
  Tape tape;
  tape.backward(sum(a * a));
  optimizer.groups()[0].options.lr = -1;
  CHECK_THROWS_AS(optimizer.step(), UsageError);
  CHECK(a.value().item() == 1);
  optimizer.groups()[0].options.lr = 1;
  optimizer.step();
  CHECK(a.value().item() == -1);
}

TEST_CASE("groups: a checkpoint brings back the options of each, whoever gave them") {
  const test::TemporaryFolder folder;
  const auto program = [](double lr, optim::RMSprop::Options options) {
    return std::make_unique<optim::RMSprop>(
        std::vector<optim::Group<optim::RMSprop::Given>>{{{group_member("a", {1, 2})}, {}},
                                                         {{group_member("b", {3})}, {.lr = lr}}},
        options);
  };
  const auto saved = program(0.5, {.lr = 0.1, .alpha = 0.8, .momentum = 0.7, .centered = true});
  saved->groups()[0].options.weight_decay = 0.25;
  nn::Checkpoint checkpoint;
  checkpoint.add("optimizer", *saved);
  checkpoint.save(folder / "run");
  const auto loaded = program(0.25, {});
  nn::Checkpoint other;
  other.add("optimizer", *loaded);
  other.load(folder / "run");
  for (const std::size_t k : {0u, 1u})
    CHECK(loaded->groups()[k].options == saved->groups()[k].options);
  CHECK(loaded->groups()[1].options.momentum == 0.7);
  loaded->add_param_group({group_member("c", {4})}, {.lr = 1});  // what `loaded` was made with
  CHECK(loaded->groups()[2].options == optim::RMSprop::Options{.lr = 1});
}
