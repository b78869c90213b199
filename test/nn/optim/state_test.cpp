// What a checkpoint keeps of training: every state is changed before it is saved, and compared
// after it is loaded. What was loaded then does what the saved one does.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>

#include "lockstep/lockstep.h"
#include "support/temporary_folder.h"

using namespace lockstep;

namespace {

/// Every tensor of a state, as text.
std::map<std::string, std::string> contents(const nn::StateDict& state) {
  std::map<std::string, std::string> all;
  for (const auto& [name, tensor] : state) all.emplace(name, nn::sha256_of(tensor));
  return all;
}

/// `saved` has been used, `fresh` not, and the same is still to come for both. `saw` tells what
/// there is to see of one outside of its state. Loads the state by itself, by nothing else.
template <class T>
void check_goes_round(const std::string& what, T& saved, T& fresh,
                      const std::function<void(T&, int step)>& use,
                      const std::function<double(T&)>& saw, const std::set<std::string>& constant) {
  CAPTURE(what);
  const auto before = contents(fresh.state_dict());
  const nn::StateDict state = saved.state_dict();
  for (const auto& [name, text] : contents(state)) {
    CAPTURE(name);
    const auto old = before.find(name);
    if (old != before.end()) CHECK((old->second == text) == constant.contains(name));
  }
  const test::TemporaryFolder folder;
  nn::Checkpoint saving, loading;
  saving.add("it", saved);
  saving.save(folder / "run");
  loading.add("it", fresh);
  loading.load(folder / "run");
  CHECK(contents(fresh.state_dict()) == contents(state));
  CHECK(saw(fresh) == saw(saved));
  for (int step = 0; step < 3; ++step) {
    use(saved, step);
    use(fresh, step);
    CHECK(contents(fresh.state_dict()) == contents(saved.state_dict()));
    CHECK(saw(fresh) == saw(saved));
  }
}

/// Two parameters whose gradients depend on the step and not on the values.
struct Weights {
  std::vector<Parameter> all{Parameter(Tensor::from({1.5F, -2.F, 0.25F}), "w"),
                             Parameter(Tensor::scalar(3, DType::f64), "v")};
  void give_gradients(int step) const {
    const double k = step % 3 + 1;
    {
      Tape tape;
      tape.backward(sum(all[0] * Tensor::from({0.5F, -1.F, 2.F}) * k));
    }
    Tape tape;
    tape.backward(all[1] * (k - 2.5));
  }
};

template <class O>
void check_optimizer(const std::string& what, const typename O::Options& options,
                     const typename O::Options& others) {
  Weights first, second;
  O saved(first.all, options), fresh(second.all, others);
  const auto use = [&](O& optimizer, int step) {
    const Weights& weights = &optimizer == &saved ? first : second;
    weights.give_gradients(step);
    optimizer.step(optim::local);
    optimizer.zero_grad();
  };
  for (int step = 0; step < 4; ++step) use(saved, step);
  for (std::size_t i = 0; i < 2; ++i) second.all[i].value().copy_from(first.all[i].value());
  check_goes_round<O>(what, saved, fresh, use,
                      [&](O& optimizer) {
                        const Weights& weights = &optimizer == &saved ? first : second;
                        return sum(weights.all[0].value()).item() + weights.all[1].value().item() +
                               optimizer.lr();
                      },
                      {"w.group", "v.group", "group 0.amsgrad", "group 0.decoupled",
                       "group 0.nesterov", "group 0.dampening", "group 0.centered"});
}

}  // namespace

TEST_CASE("state: of every optimizer all options and all that it keeps go round") {
  check_optimizer<optim::SGD>(
      "SGD", {.lr = 0.1, .momentum = 0.5, .weight_decay = 0.01, .maximize = true}, {});
  check_optimizer<optim::SGD>(
      "SGD, nesterov",
      {.lr = 0.1, .momentum = 0.5, .weight_decay = 0.1, .nesterov = true, .maximize = true},
      {.lr = 0.2, .momentum = 0.25, .nesterov = true});
  check_optimizer<optim::Adam>("Adam",
                               {.lr = 0.1,
                                .beta1 = 0.5,
                                .beta2 = 0.75,
                                .eps = 1e-3,
                                .weight_decay = 0.1,
                                .amsgrad = true,
                                .maximize = true},
                               {.amsgrad = true});
  check_optimizer<optim::AdamW>(
      "AdamW",
      {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.75, .eps = 1e-3, .weight_decay = 0.1, .maximize = true},
      {});
  check_optimizer<optim::RMSprop>("RMSprop",
                                  {.lr = 0.1,
                                   .alpha = 0.5,
                                   .eps = 1e-3,
                                   .weight_decay = 0.1,
                                   .momentum = 0.5,
                                   .centered = true,
                                   .maximize = true},
                                  {.momentum = 0.25, .centered = true});
  check_optimizer<optim::Lion>(
      "Lion", {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.75, .weight_decay = 0.1, .maximize = true}, {});
}

TEST_CASE("state: a schedule that is loaded alone sets the rates of every group") {
  const auto make = [](double a, double b) {
    return std::make_unique<optim::SGD>(std::vector<optim::Group<optim::SGD::Given>>{
        {{Parameter(Tensor::zeros({1}), "a")}, {.lr = a}},
        {{Parameter(Tensor::zeros({1}), "b")}, {.lr = b}}});
  };
  const auto first = make(0.1, 0.3), second = make(7, 9);
  const auto factor = [](std::int64_t step) { return optim::step_decay(step, 2, 0.5); };
  optim::Schedule saved(*first, factor), fresh(*second, factor);
  for (int i = 0; i < 5; ++i) saved.step();
  for (const std::size_t group : {0, 1}) {
    const auto rate = [&](optim::Schedule& schedule) {
      return (&schedule == &saved ? first : second)->groups()[group].options.lr;
    };
    check_goes_round<optim::Schedule>("schedule", saved, fresh,
                                      [](optim::Schedule& schedule, int) { schedule.step(); }, rate,
                                      {});
    second->groups()[0].options.lr = second->groups()[1].options.lr = 5;
    fresh.load_state_dict(
        {{"step", Tensor::of<std::int64_t>({}, {0})}, {"base_lrs", Tensor::from({5.0, 5.0})}});
  }
}

TEST_CASE("state: a plateau's best and its patience go round, wherever it is cut") {
  for (int cut = 1; cut < 8; ++cut) {
    CAPTURE(cut);
    const auto make = [] { return optim::SGD({Parameter(Tensor::zeros({1}), "w")}, {.lr = 1}); };
    auto first = make(), second = make();
    optim::Plateau saved(first, {.factor = 0.5, .patience = 2, .threshold = 0.1}),
        fresh(second, {.factor = 0.5, .patience = 2, .threshold = 0.1});
    const std::vector<double> losses{3, 2.9, 2.8, 2.75, 2, 1.9, 1.85, 1.84, 1.83, 1.82, 1.81};
    for (int i = 0; i < cut; ++i) saved.step(losses[static_cast<std::size_t>(i)]);
    second.set_lr(first.lr());
    fresh.load_state_dict(saved.state_dict());
    for (std::size_t i = static_cast<std::size_t>(cut); i < losses.size(); ++i) {
      saved.step(losses[i]);
      fresh.step(losses[i]);
      CHECK(contents(saved.state_dict()) == contents(fresh.state_dict()));
      CHECK(first.lr() == second.lr());
    }
  }
}

TEST_CASE("state: averages, and the scale and the steady steps of a scaler, go round") {
  Weights first, second;
  for (const Parameter& p : first.all) p.value() += 1.0;
  optim::Ema saved(first.all, 0.5), fresh(second.all, 0.5);
  for (const Weights* weights : {&first, &second})
    for (const Parameter& p : weights->all) p.value() += 2.0;
  saved.update();
  for (std::size_t i = 0; i < 2; ++i) second.all[i].value().copy_from(first.all[i].value());
  check_goes_round<optim::Ema>(
      "Ema", saved, fresh, [](optim::Ema& ema, int) { ema.update(); },
      [](optim::Ema& ema) { return sum(ema.state_dict().at("w")).item(); }, {});

  const optim::GradScalerOptions options{.scale = 8, .growth_interval = 3};
  optim::GradScaler used(options), unused(options);
  const auto use = [&](optim::GradScaler& scaler, int step) {
    const Weights& weights = &scaler == &used ? first : second;
    optim::SGD optimizer(weights.all, {.lr = 0});
    weights.give_gradients(step);
    scaler.unscale(optimizer);
    scaler.update();
    for (const Parameter& p : weights.all) p.zero_grad();
  };
  for (int step = 0; step < 4; ++step) use(used, step);
  check_goes_round<optim::GradScaler>("GradScaler", used, unused, use,
                                      [](optim::GradScaler& scaler) { return scaler.scale(); }, {});
}

TEST_CASE("state: the random generators of the calling thread go round, each part of them") {
  const test::TemporaryFolder folder;
  const auto draw = [] {
    Tensor normal = Tensor::empty({3});
    default_generator().normal(normal);
    return contents({{"normal", normal}, {"philox", nn::Dropout(0.5)(Tensor::ones({64}))}});
  };
  manual_seed(5);
  (void)draw();
  nn::Checkpoint checkpoint;
  checkpoint.save(folder / "run");
  const auto after = draw();
  CHECK(draw() != after);
  for (const std::uint64_t seed : {5, 6}) {  // the same seed at another place, and another seed
    manual_seed(seed);
    checkpoint.load(folder / "run");
    CHECK(draw() == after);
  }
}

TEST_CASE("state: an optimizer that kept more than it loads forgets the rest") {
  Weights weights;
  optim::SGD fresh(weights.all, {.lr = 0.1, .momentum = 0.5});
  const nn::StateDict none = fresh.state_dict();
  std::vector<std::map<std::string, std::string>> runs;
  for (int run = 0; run < 2; ++run) {
    fresh.load_state_dict(none);
    CHECK(contents(fresh.state_dict()) == contents(none));
    for (int step = 0; step < 2; ++step) {
      weights.give_gradients(step);
      fresh.step(optim::local);
      fresh.zero_grad();
    }
    runs.push_back(contents(fresh.state_dict()));
  }
  CHECK(runs[0] == runs[1]);
}

TEST_CASE("state: an optimizer's digest tells rules apart that have the same options") {
  struct Digest : optim::Optimizer {
    static std::uint64_t of(const optim::Optimizer& optimizer) {
      return (optimizer.*(&Digest::options_digest))();
    }
  };
  // Five numbers each: {lr, 0, 0, 0, 0}, whatever they are called.
  const Weights weights;
  const optim::Lion lion(weights.all, {.lr = 0.5, .beta1 = 0, .beta2 = 0, .weight_decay = 0});
  const optim::SGD sgd(weights.all, {.lr = 0.5});
  const optim::Adam adam(weights.all,
                         {.lr = 0.5, .beta1 = 0, .beta2 = 0, .eps = 0, .weight_decay = 0});
  const optim::AdamW adamw(weights.all,
                           {.lr = 0.5, .beta1 = 0, .beta2 = 0, .eps = 0, .weight_decay = 0});
  const optim::RMSprop rms(weights.all, {.lr = 0.5, .alpha = 0, .eps = 0});
  std::set<std::uint64_t> digests;
  for (const optim::Optimizer* optimizer :
       {static_cast<const optim::Optimizer*>(&lion), static_cast<const optim::Optimizer*>(&sgd),
        static_cast<const optim::Optimizer*>(&adam), static_cast<const optim::Optimizer*>(&adamw),
        static_cast<const optim::Optimizer*>(&rms)})
    CHECK(digests.insert(Digest::of(*optimizer)).second);
}

namespace {

template <class O>
void check_flags(const std::set<std::string>& flags) {
  const Parameter w(Tensor::ones({2}), "w");
  O optimizer({w}, {});
  const nn::StateDict whole = optimizer.state_dict();
  for (const std::string& flag : flags)
    for (const double value : {0.5, -1.0, 2.0, 1e-300, std::nan(""), optim::infinity}) {
      CAPTURE(flag);
      CAPTURE(value);
      nn::StateDict state = whole;
      state.at("group 0." + flag) = Tensor::scalar(value, DType::f64);
      const std::string part = "'group 0." + flag + "' must be 0 or 1, got";
      CHECK_THROWS_WITH_AS(optimizer.load_state_dict(state), doctest::Contains(part.c_str()),
                           UsageError);
      CHECK(contents(optimizer.state_dict()) == contents(whole));
    }
}

}  // namespace

TEST_CASE("state: a number that is no value of its option is not loaded as one") {
  check_flags<optim::SGD>({"nesterov", "maximize"});
  check_flags<optim::Adam>({"amsgrad", "maximize", "decoupled"});
  check_flags<optim::AdamW>({"amsgrad", "maximize"});
  check_flags<optim::RMSprop>({"centered", "maximize"});
  check_flags<optim::Lion>({"maximize"});

  optim::SGD optimizer({Parameter(Tensor::ones({2}), "w")}, {.lr = 0.5});
  optim::Plateau plateau(optimizer);
  plateau.step(3);
  optim::Schedule schedule(optimizer, [](std::int64_t) { return 1; });
  const auto best = contents(plateau.state_dict()), rates = contents(schedule.state_dict());
  nn::StateDict state = plateau.state_dict();
  state.at("best") = Tensor::scalar(std::nan(""), DType::f64);
  state.at("bad") = Tensor::scalar(1, DType::i64);
  CHECK_THROWS_WITH_AS(plateau.load_state_dict(state), doctest::Contains("'best' is NaN"),
                       UsageError);
  CHECK(contents(plateau.state_dict()) == best);
  for (const double rate : {-1.0, std::nan(""), optim::infinity}) {
    state = schedule.state_dict();
    state.at("step") = Tensor::scalar(5, DType::i64);
    state.at("base_lrs") = Tensor::from({rate});
    CHECK_THROWS_WITH_AS(schedule.load_state_dict(state), doctest::Contains("base_lrs must be in"),
                         UsageError);
    CHECK(contents(schedule.state_dict()) == rates);
    CHECK(optimizer.lr() == 0.5);
  }
}
