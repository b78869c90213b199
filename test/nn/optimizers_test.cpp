// What all optimizers have in common: their options, their groups, what they skip, and that
// replicas stay equal. Their formulas are those of test/kernels/optimizer_test.cpp.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>

#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/lockstep.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Every optimizer, with options that keep all that it can keep.
template <class Optimizer>
struct Kind;
template <>
struct Kind<optim::SGD> {
  static constexpr optim::SGD::Options options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1};
};
template <>
struct Kind<optim::Adam> {
  static constexpr optim::Adam::Options options{.lr = 0.1, .weight_decay = 0.1, .amsgrad = true};
};
template <>
struct Kind<optim::AdamW> {
  static constexpr optim::AdamW::Options options{.lr = 0.1, .amsgrad = true};
};
template <>
struct Kind<optim::RMSprop> {
  static constexpr optim::RMSprop::Options options{
      .lr = 0.1, .eps = 1, .weight_decay = 0.1, .momentum = 0.9, .centered = true};
};
template <>
struct Kind<optim::Lion> {
  static constexpr optim::Lion::Options options{.lr = 0.1, .weight_decay = 0.1};
};

#define ALL_OPTIMIZERS optim::SGD, optim::Adam, optim::AdamW, optim::RMSprop, optim::Lion

Parameter parameter(const char* name, std::vector<double> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  return Parameter(Tensor::of<double>({n}, std::move(values)), name);
}

std::vector<double> values_of(const Parameter& p) { return p.value().to_vector<double>(); }

/// A step's gradients; those of a parameter that is not in `used` do not exist.
void backward(const std::vector<Parameter>& used, double factor, Weight weight = {}) {
  Tape tape;
  Tensor loss = Tensor::zeros({}, DType::f64);
  for (const Parameter& p : used) loss = loss + factor * sum(p * p);
  tape.backward(loss, weight);
}

/// The bits of what an optimizer keeps of a parameter, by name.
std::vector<std::pair<std::string, std::vector<double>>> state_of(const optim::Optimizer& optimizer,
                                                                  const Parameter& p) {
  std::vector<std::pair<std::string, std::vector<double>>> result;
  for (const StateTensor& s : optimizer.state_of(p))
    result.emplace_back(s.name, s.value.dtype() == DType::f64
                                    ? s.value.to_vector<double>()
                                    : std::vector<double>{s.value.item()});
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("optimizers: a group that joins later begins anew", O, ALL_OPTIMIZERS) {
  const auto options = Kind<O>::options;
  const typename O::Given slow{.lr = 0.01};
  const Parameter a = parameter("a", {1, -2, 3}), b = parameter("b", {4, -5});
  const Parameter a2 = parameter("a", {1, -2, 3}), b2 = parameter("b", {4, -5});
  O whole({{{a}, {}}, {{b}, slow}}, options);
  O grown({a2}, options);
  for (int step = 0; step < 5; ++step) {
    if (step == 2) grown.add_param_group({b2}, slow);
    for (optim::Optimizer* o :
         {static_cast<optim::Optimizer*>(&whole), static_cast<optim::Optimizer*>(&grown)})
      o->zero_grad();
    if (step < 2) {  // b has no gradient: it is skipped
      backward({a}, step + 1);
      backward({a2}, step + 1);
    } else {
      backward({a, b}, step + 1);
      backward({a2, b2}, step + 1);
    }
    whole.step();
    grown.step();
    CHECK(values_of(a2) == values_of(a));
    CHECK(values_of(b2) == values_of(b));
  }
  CHECK(values_of(b2) != std::vector<double>{4, -5});
  CHECK(state_of(grown, a2) == state_of(whole, a));
  CHECK(state_of(grown, b2) == state_of(whole, b));
  CHECK(grown.options_text() == whole.options_text());
}

TEST_CASE_TEMPLATE("optimizers: a group that is refused changes nothing", O, ALL_OPTIMIZERS) {
  typename O::Given given;
  const Parameter a = parameter("a", {1}), b = parameter("b", {2}), c = parameter("c", {3});
  O optimizer({a}, Kind<O>::options);
  const auto add = [&](std::vector<Parameter> parameters) {
    optimizer.add_param_group(std::move(parameters), given);
  };
  CHECK_THROWS_WITH_AS(add({b, a}), "[add_param_group] 'a' is in a group already", UsageError);
  CHECK_THROWS_WITH_AS(add({b, b}), "[add_param_group] 'b' is given twice", UsageError);
  CHECK_THROWS_WITH_AS(add({b, Parameter()}), "[add_param_group] parameter 1 is undefined",
                       UsageError);
  given.lr = -1;
  CHECK_THROWS_WITH_AS(add({b}), doctest::Contains("lr must be in [0, inf), got -1"), UsageError);
  given.lr = 0.1;
  CHECK(optimizer.group_views().size() == 1);
  add({b, c});  // b was not taken in by what was refused
  CHECK(optimizer.group_views().size() == 2);
  backward({a, b, c}, 1);
  optimizer.step();
  CHECK(values_of(c)[0] < 3);
}

TEST_CASE_TEMPLATE("optimizers: NaN and what is out of range is refused wherever it is set", O,
                   ALL_OPTIMIZERS) {
  using Options = typename O::Options;
  const std::vector<std::function<void(optim::GroupView&, double)>> set = {
      [](optim::GroupView& g, double x) { g.lr = x; },
      [](optim::GroupView& g, double x) { g.weight_decay = x; }};
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(), -0.5})
    for (const auto& change : set) {
      const Parameter a = parameter("a", {1});
      O optimizer({a}, Kind<O>::options);
      auto view = optimizer.group_views().at(0);
      backward({a}, 1);
      change(view, bad);
      CHECK_THROWS_AS(optimizer.step(), UsageError);
      CHECK(values_of(a)[0] == 1);
      Options options = Kind<O>::options;
      optim::GroupView of_options{view.parameters, options.lr, options.weight_decay};
      change(of_options, bad);
      CHECK_THROWS_AS(O({a}, options), UsageError);
      const typename O::Given given{.lr = options.lr, .weight_decay = options.weight_decay};
      CHECK_THROWS_AS(optimizer.add_param_group({parameter("b", {1})}, given), UsageError);
    }
}

TEST_CASE("RMSprop and Lion refuse options by name and value") {
  const std::vector<Parameter> one{parameter("w", {1})};
  using RMSprop = optim::RMSprop;
  const double nan = std::nan("");
  CHECK_THROWS_WITH_AS(RMSprop(one, {.alpha = 1}), "[RMSprop] alpha must be in [0, 1), got 1",
                       UsageError);
  CHECK_THROWS_WITH_AS(RMSprop(one, {.eps = nan}), "[RMSprop] eps must be in [0, inf), got nan",
                       UsageError);
  CHECK_THROWS_WITH_AS(RMSprop(one, {.momentum = -1}),
                       "[RMSprop] momentum must be in [0, inf), got -1", UsageError);
  CHECK_THROWS_WITH_AS(optim::Lion(one, {.beta1 = nan}), "[Lion] beta1 must be in [0, 1), got nan",
                       UsageError);
  CHECK_THROWS_WITH_AS(optim::Lion(one, {.beta2 = 1.5}), "[Lion] beta2 must be in [0, 1), got 1.5",
                       UsageError);
  CHECK_THROWS_WITH_AS(optim::SGD(one, {.dampening = nan}),
                       "[SGD] dampening must be in (-inf, inf), got nan", UsageError);
  CHECK_THROWS_WITH_AS(optim::AdamW(one, {.beta1 = 2}), "[AdamW] beta1 must be in [0, 1), got 2",
                       UsageError);
}

TEST_CASE_TEMPLATE("optimizers: a schedule needs no more than Optimizer&", O, ALL_OPTIMIZERS) {
  const Parameter a = parameter("a", {1}), b = parameter("b", {2});
  O typed({{{a}, {}}, {{b}, {.lr = 0.5}}}, Kind<O>::options);
  optim::Optimizer& optimizer = typed;
  const auto views = optimizer.group_views();
  REQUIRE(views.size() == 2);
  CHECK(views[1].parameters == std::vector<Parameter>{b});
  CHECK(views[0].lr == 0.1);
  CHECK(views[0].weight_decay == Kind<O>::options.weight_decay);
  CHECK_THROWS_WITH_AS(optimizer.lr(),
                       "[lr] groups 0 and 1 have different learning rates, 0.1 and 0.5: read them "
                       "from group_views()",
                       StateError);
  for (const auto& group : views) group.lr /= 2;
  CHECK(typed.groups()[1].options.lr == 0.25);
  optimizer.set_lr(0.125);
  CHECK(optimizer.lr() == 0.125);
  CHECK(typed.groups()[0].options.lr == 0.125);
  CHECK(typed.groups()[1].options.lr == 0.125);
  CHECK_THROWS_WITH_AS(optimizer.set_lr(std::nan("")), "[set_lr] lr must be in [0, inf), got nan",
                       UsageError);
  CHECK(optimizer.lr() == 0.125);
  CHECK_THROWS_AS(O(std::vector<optim::Group<typename O::Given>>{}), UsageError);
}

TEST_CASE_TEMPLATE("optimizers: frozen parameters and those without a gradient are skipped", O,
                   ALL_OPTIMIZERS) {
  const Parameter a = parameter("a", {1, 2}), b = parameter("b", {3, 4}), c = parameter("c", {5});
  O optimizer({a, b, c}, Kind<O>::options);
  b.set_requires_grad(false);
  backward({a, b, c}, 1);
  optimizer.step();
  CHECK(values_of(b) == std::vector<double>{3, 4});
  const auto kept = state_of(optimizer, c), values = state_of(optimizer, a);
  const std::vector<double> c_was = values_of(c), a_was = values_of(a);
  optimizer.zero_grad();
  backward({a}, 2);
  optimizer.step();
  CHECK(values_of(c) == c_was);
  CHECK(state_of(optimizer, c) == kept);
  CHECK(values_of(a) != a_was);
  CHECK(state_of(optimizer, a) != values);
}

TEST_CASE_TEMPLATE("optimizers: to maximize is to minimize the opposite", O, ALL_OPTIMIZERS) {
  auto up = Kind<O>::options;
  up.maximize = true;
  const Parameter a = parameter("a", {1, -2}), b = parameter("b", {1, -2});
  O down({a}, Kind<O>::options), opposite({b}, up);
  for (int step = 0; step < 3; ++step) {
    backward({a}, 1);
    backward({b}, -1);
    down.step();
    opposite.step();
    CHECK(values_of(b) == values_of(a));
    down.zero_grad();
    opposite.zero_grad();
  }
  CHECK(state_of(opposite, b) == state_of(down, a));
}

TEST_CASE("optimizers: options that keep more may be switched on between steps") {
  const Parameter a = parameter("a", {1, 2}), b = parameter("b", {1, 2});
  optim::Adam adam({a}, {});
  optim::RMSprop rmsprop({b}, {});
  for (const bool more : {false, true, true}) {
    adam.groups()[0].options.amsgrad = more;
    rmsprop.groups()[0].options.centered = more;
    rmsprop.groups()[0].options.momentum = more ? 0.9 : 0;
    backward({a, b}, 1);
    adam.step();
    rmsprop.step();
    adam.zero_grad();
    rmsprop.zero_grad();
    CHECK(adam.state_of(a).size() == (more ? 4 : 3));
    CHECK(rmsprop.state_of(b).size() == (more ? 3 : 1));
  }
  for (const double x : adam.state_of(a).at(2).value.to_vector<double>()) CHECK(x > 0);
}

TEST_CASE_TEMPLATE("optimizers: replicas stay equal, also with a group that joins", O,
                   ALL_OPTIMIZERS) {
  // Three rows of data, whoever has them: the result is that of one process, but for rounding.
  std::vector<double> alone;
  for (const int ranks : {1, 2, 3}) {
    std::vector<double> ends[3];
    check_all_well(messages_on_threads(ranks, [&](World& world) {
      const Parameter a = parameter("a", {1, -2, 3}), b = parameter("b", {4, -5, 6});
      dist::DistributedDataParallel ddp({a, b}, {}, world);
      O optimizer({a}, Kind<O>::options);
      for (int step = 0; step < 5; ++step) {
        if (step == 2) optimizer.add_param_group({b});
        a.zero_grad();
        b.zero_grad();
        Tape tape;
        Tensor loss = Tensor::zeros({}, DType::f64);
        int rows = 0;
        for (int row = world.rank(); row < 3; row += world.size(), ++rows)
          loss = loss + (row + 1.0) * sum(a * b + a);
        tape.backward((1.0 / rows) * loss, Weight{static_cast<double>(rows), 3});
        optimizer.step();
      }
      ddp.check_replicas();
      auto& end = ends[world.rank()];
      for (const Parameter& p : {a, b})
        for (const double x : values_of(p)) end.push_back(x);
    }));
    for (int rank = 1; rank < ranks; ++rank) CHECK(ends[rank] == ends[0]);
    if (ranks == 1) alone = ends[0];
    REQUIRE(ends[0].size() == 6);
    for (std::size_t i = 0; i < 6; ++i)
      CHECK(ends[0][i] == doctest::Approx(alone[i]).epsilon(1e-12));
    CHECK(alone[3] != 4);  // b has moved
  }
}

TEST_CASE("trap: a group that joins on one rank alone") {
  const auto messages = messages_on_threads(3, [](World& world) {
    const Parameter a = parameter("a", {1}), b = parameter("b", {2});
    const dist::DistributedDataParallel ddp({a, b}, {}, world);
    optim::RMSprop optimizer({a}, {.lr = 0.5});
    for (int step = 0; step < 2; ++step) {
      if (world.rank() == 1) optimizer.add_param_group({parameter("own", {3})}, {.lr = 0.25});
      a.zero_grad();
      b.zero_grad();
      backward({a, b}, 1);
      optimizer.step();
    }
  });
  check_all_say(messages,
                {"ranks 0 and 1 did not take the same optimizer steps",
                 "group 0 of RMSprop's lr 0.5 on rank 1, RMSprop's lr 0.5 on ranks 0, 2"});
}

TEST_CASE_TEMPLATE("optimizers: groups whose parameters were changed are refused", O,
                   ALL_OPTIMIZERS) {
  using Groups = std::vector<optim::Group<typename O::Options>>;
  const auto refused = [](void (*change)(Groups&)) {
    const Parameter a = parameter("a", {1}), b = parameter("b", {2});
    O optimizer(std::vector<optim::Group<typename O::Given>>{{{a}, {}}, {{b}, {}}},
                Kind<O>::options);
    change(optimizer.groups());
    Tape tape;
    tape.backward(sum(a * b));
    CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("of its groups were changed"),
                         StateError);
  };
  refused([](Groups& groups) { groups.push_back({}); });
  refused([](Groups& groups) { groups.pop_back(); });
  refused([](Groups& groups) { groups[0].parameters.clear(); });
  refused([](Groups& groups) { std::swap(groups[0], groups[1]); });
  refused([](Groups& groups) {  // moved across, in the same order
    groups[0].parameters.push_back(groups[1].parameters[0]);
    groups[1].parameters.clear();
  });
}
