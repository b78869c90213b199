// Lists of parameters: each stands there once, and every function that takes a list says so by one
// rule (check_each_once). A list with a tied weight in it twice would count it twice.

#include <doctest/doctest.h>

#include <functional>

#include "lockstep/dist/doctor/doctor.h"
#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

using Lists = std::vector<std::pair<const char*, std::function<void(std::vector<Parameter>)>>>;

/// Every function that takes a list, by the name that its errors begin with.
Lists takers(World& world) {
  static const std::vector<Parameter> others{Parameter(Tensor::ones({1}), "other")};
  static optim::SGD grown(others, {.lr = 0.1});
  return {
      {"optimizer", [](auto list) { optim::SGD(list, {.lr = 0.1}); }},
      {"optimizer",
       [](auto list) {
         optim::Adam({{list, {.lr = 0.1}}});
       }},
      {"add_param_group", [](auto list) { grown.add_param_group(list); }},
      {"Ema", [](auto list) { optim::Ema(list, 0.5); }},
      {"clip_grad_norm", [](auto list) { optim::clip_grad_norm(list, 1); }},
      {"clip_grad_norm", [](auto list) { optim::clip_grad_norm(list, 1, optim::local); }},
      {"clip_grad_value", [](auto list) { optim::clip_grad_value(list, 1); }},
      {"parameter_digest", [](auto list) { (void)parameter_digest(list); }},
      {"DistributedDataParallel",
       [&world](auto list) { const dist::DistributedDataParallel ddp(list, {}, world); }},
      {"DistributedDataParallel",
       [&world](auto list) { const dist::Reducer reducer(list, world.communicator()); }},
      {"check_placement", [&world](auto list) { doctor::check_placement(world, list, {}, {}); }},
      {"check_same_model", [&world](auto list) { doctor::check_same_model(world, list); }},
  };
}

}  // namespace

TEST_CASE("lists: a parameter that is given twice, or is none, is refused by everybody") {
  run_threads(1, {}, [](World& world) {
    for (const auto& [name, take] : takers(world)) {
      CAPTURE(name);
      const Parameter a(Tensor::ones({2}), "a"), b(Tensor::ones({3}), "b");
      {
        Tape tape;
        tape.backward(sum(a) + sum(b));
      }
      CHECK_THROWS_WITH_AS(take({a, b, a}), fmt::format("[{}] 'a' is given twice", name).c_str(),
                           UsageError);
      a.set_requires_grad(false);
      CHECK_THROWS_WITH_AS(take({b, a, a}), fmt::format("[{}] 'a' is given twice", name).c_str(),
                           UsageError);
      CHECK_THROWS_WITH_AS(take({a, Parameter()}),
                           fmt::format("[{}] parameter 1 is undefined", name).c_str(), UsageError);
      CHECK(a.gradient().to_vector<float>() == std::vector<float>{1, 1});
      a.set_requires_grad(true);
      CHECK_NOTHROW(take({a, b}));
    }
  });
}

TEST_CASE("lists: a parameter without a name is named by its place and its shape") {
  const Parameter a(Tensor::ones({2}), "a"), nameless(Tensor::ones({3, 5}));
  const std::string label = "parameter 2 (unnamed, of shape (3, 5))";
  CHECK(label_of({a, a, nameless}, 2) == label);
  CHECK(label_of({a, nameless}, 0) == "'a'");
  CHECK_THROWS_WITH_AS(check_each_once("test", {nameless, a, nameless}),
                       ("[test] " + label + " is given twice").c_str(), UsageError);
  const Parameter b(Tensor::ones({1}), "b");
  optim::Ema ema({a, b, nameless}, 0.5);
  CHECK_THROWS_WITH_AS(ema.state_dict(), doctest::Contains(label.c_str()), StateError);
  optim::SGD optimizer({a, b, nameless}, {.lr = 1});
  CHECK_THROWS_WITH_AS(optimizer.state_dict(), doctest::Contains(label.c_str()), StateError);
  Tape tape;
  const Tensor loss = sum(square(nameless));
  nameless.value().fill(2);
  CHECK_THROWS_WITH_AS(tape.backward(loss),
                       doctest::Contains("an unnamed parameter of shape (3, 5) was changed in "),
                       StateError);
  CHECK_THROWS_WITH_AS(Parameter{Tensor()},
                       "[parameter] one without a name, of an undefined tensor", StateError);
}

TEST_CASE("lists: a call that was refused does not change what the next one says") {
  const Parameter a(Tensor::ones({1}), "a"), b(Tensor::ones({1}), "b");
  for (int again = 0; again < 3; ++again) {
    CHECK_THROWS_AS(check_each_once("test", {a, b, b}), UsageError);
    CHECK_NOTHROW(check_each_once("test", {b, a}));
  }
}

TEST_CASE("lists: whoever reads a model with a tied weight counts it once") {
  struct Tied : nn::Module {
    nn::Linear first{2, 2, false}, second{2, 2, false};
    Tied() { second.weight = first.weight; }
    Tensor forward(const Tensor& x) override { return second(first(x)); }
    void visit(nn::Visitor& p) override {
      p("first", first);
      p("second", second);
    }
  } model;
  const std::vector<Parameter> all = model.parameters();
  REQUIRE(all.size() == 1);
  CHECK(model.to_string().find("Tied: 4 parameters\n") != std::string::npos);
  all[0].value().fill(3);
  all[0].gradient_slot().fill(1.5);
  all[0].set_gradient_state(GradientState::local);
  CHECK(optim::clip_grad_norm(all, 1).item() == 3);  // sqrt(4 * 1.5^2), and not sqrt(8 * 1.5^2)
  optim::Ema ema(all, 0.5);
  all[0].value().fill(8);
  {
    const optim::Ema::Applied applied(ema);
    CHECK(all[0].value().to_vector<float>() == std::vector<float>(4, 3));
  }
  CHECK(all[0].value().to_vector<float>() == std::vector<float>(4, 8));
}
