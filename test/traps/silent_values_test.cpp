// Values that were silently wrong: other layers' statistics, another model's hook, forgotten
// weights, tensors changed between forward and backward.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "dist/ddp/halves_hook.h"
#include "lockstep/kernels/loss.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Two normalizations of equally many channels; `swapped` calls them in the other order.
struct TwoNorms : nn::Module {
  nn::BatchNorm a{3, {.dtype = DType::f64}}, b{3, {.dtype = DType::f64}};
  bool swapped = false;
  Tensor forward(const Tensor& x) override { return swapped ? a(b(x)) : b(a(x)); }
  void visit(nn::Visitor& p) override {
    p("a", a);
    p("b", b);
  }
};

}  // namespace

TEST_CASE("trap: SyncBatchNorm of ranks that call other layers") {
  for (const bool one_swaps : {false, true}) {
    const auto messages = messages_on_threads(3, [&](World& world) {
      TwoNorms model;
      DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
      nn::convert_sync_batchnorm(model, world);
      model.swapped = one_swaps && world.rank() == 1;
      Tape tape;
      tape.backward(mean(model(rows(4 * world.rank(), 4 * world.rank() + 4))));
    });
    if (one_swaps) {
      check_all_say(messages, {"'a: batch_norm 3", "'b: batch_norm 3"});
    } else {
      check_all_well(messages);
    }
  }
}

TEST_CASE("trap: SyncBatchNorm layers of one name, or of none, that one rank swaps") {
  using Norm = nn::BatchNorm;
  using Two = std::pair<Norm, Norm>;
  const nn::BatchNormOptions f64{.dtype = DType::f64};
  const std::vector<std::pair<std::vector<std::string>, std::function<Two(World&)>>> all = {
      {{"'layer 1: batch_", "'layer 2: batch_"},
       [&](World& world) {
         return Two(nn::SyncBatchNorm(3, world, f64), nn::SyncBatchNorm(3, world, f64));
       }},
      {{"'norm: batch_nor", "'norm (2): batch"},  // a GAN's two networks, say
       [&](World& world) {
         return Two(nn::SyncBatchNorm(3, world, f64, "norm"),
                    nn::SyncBatchNorm(3, world, f64, "norm"));
       }},
      {{"'norm: batch_nor", "'norm (2): batch"},
       [&](World& world) {
         Norm norm = nn::SyncBatchNorm(3, world, f64, "norm");
         Norm copy = nn::clone(norm);
         return Two(std::move(norm), std::move(copy));
       }},
      {{"'layer 1: batch_", "'layer 2: batch_"},
       [&](World& world) {
         Norm first(3, f64), second(3, f64);
         for (Norm* norm : {&first, &second}) nn::convert_sync_batchnorm(*norm, world);
         return Two(std::move(first), std::move(second));
       }},
  };
  for (const auto& [names, make] : all)
    for (const bool one_swaps : {false, true}) {
      const auto messages = messages_on_threads(3, [&](World& world) {
        Two norms = make(world);
        if (one_swaps && world.rank() == 1) std::swap(norms.first, norms.second);
        const Tensor x = rows(4 * world.rank(), 4 * world.rank() + 4);
        (void)norms.second(norms.first(x));
      });
      if (one_swaps)
        check_all_say(messages, names);
      else
        check_all_well(messages);
    }
}

TEST_CASE("trap: a communication hook that two DDPs share") {
  const auto messages = messages_on_threads(2, [](World& world) {
    const Parameter a(Tensor::full({8, 8}, 1, DType::f64), "a");
    const Parameter b(Tensor::full({8, 8}, 1, DType::f64), "b");
    const auto hook = std::make_shared<HalvesHook>();
    { DistributedDataParallel first({a}, {}, world, {.hook = hook}); }
    DistributedDataParallel again({a}, {}, world, {.hook = hook});  // the first has given it back
    DistributedDataParallel second({b}, {}, world, {.hook = hook});
  });
  check_all_say(messages, {"already serves another DistributedDataParallel"});
}

TEST_CASE("trap: a window over two DDPs of which a backward reaches only one") {
  const auto train = [](bool first_reaches_both) {
    return messages_on_threads(2, [=](World& world) {
      const Parameter a = scalar("a", 2), b = scalar("b", 3);
      DistributedDataParallel first({a}, {}, world), second({b}, {}, world);
      {
        Tape tape;
        tape.backward(first_reaches_both ? a * b : a * a, Weight{5}, {.sync = false});
      }
      Tape tape;
      tape.backward(a * b, Weight{3});
      expect(std::abs(gradient_of(b) - 2) < 1e-15, "{} instead of 2", gradient_of(b));
    });
  };
  check_all_well(train(true));
  check_all_say(train(false), {"the weights add up to 8 in one and 3 in the other"});
}

TEST_CASE("a backward over two DDPs of which one is paused") {
  for (const bool first_paused : {true, false}) {
    run_threads(2, {}, [=](World& world) {
      const Parameter a = scalar("a", 2), b = scalar("b", 3);
      DistributedDataParallel first({a}, {}, world), second({b}, {}, world);
      const Parameter &paused = first_paused ? a : b, &other = first_paused ? b : a;
      const double mine = world.rank() + 1;
      {
        const dist::NoSync pause = (first_paused ? first : second).no_sync();
        Tape tape;
        tape.backward(scale(paused, mine) + scale(other, 10 * mine));
      }
      expect(gradient_of(other) == (10 + 20) / 2.0, "mean of the ranks: {}", gradient_of(other));
      Tape tape;
      tape.backward(scale(paused, 100 * mine));
      expect(gradient_of(paused) == (1 + 2 + 100 + 200) / 4.0, "mean of four parts: {}",
             gradient_of(paused));
    });
  }
}

TEST_CASE("trap: a tensor that forward saved is changed before backward") {
  struct Change {
    const char* name;
    std::function<void(const Parameter&, const Tensor&, optim::Optimizer&)> act;
    const char* text;  // empty: harmless
  };
  const std::vector<Change> changes = {
      {"nothing", [](auto&, auto&, auto&) {}, ""},
      {"a step", [](auto&, auto&, optim::Optimizer& o) { o.step(); }, "'w' of shape (2, 3)"},
      {"copy_from",
       [](const Parameter& w, auto&, auto&) { w.value().copy_from(w.value().clone()); },
       "'w' of shape (2, 3)"},
      {"fill", [](auto&, const Tensor& x, auto&) { x.fill(1); }, "a tensor of shape (4, 3)"},
      {"fill_zero", [](auto&, const Tensor& x, auto&) { x.fill_zero(); }, "a tensor of shape"},
      {"a slice of it", [](auto&, const Tensor& x, auto&) { x.slice(0, 1).fill(1); },
       "a tensor of shape (4, 3)"},
      {"another tensor", [](auto&, const Tensor& x, auto&) { x.clone().fill(1); }, ""},
  };
  using Operation = std::function<Tensor(const Tensor& x, const Tensor& w)>;
  const Operation uses[] = {
      [](const Tensor& x, const Tensor& w) { return linear(x, w, {}); },
      [](const Tensor& x, const Tensor& w) { return matmul(x, w, {.transpose_b = true}); },
      [](const Tensor& x, const Tensor& w) {
        return checkpoint([w](const Tensor& h) { return linear(h, w, {}); }, x);
      },
  };
  for (const Change& change : changes)
    for (std::size_t use = 0; use < std::size(uses); ++use) {
      CAPTURE(change.name);
      CAPTURE(use);
      const Parameter w(rows(0, 2).clone(), "w");
      optim::SGD optimizer({w}, {.lr = 0.1});
      const Tensor x = rows(5, 9);
      Tape tape;
      const Tensor watched = tape.watch(x);
      const Tensor y = uses[use](watched, w);
      {
        Tape other;
        other.backward(sum(w));
      }
      change.act(w, x, optimizer);
      w.zero_grad();
      const bool harmless = change.text[0] == '\0';
      if (harmless) {
        tape.backward(sum(y));
      } else {
        expect_error<StateError>(change.text, [&] { tape.backward(sum(y)); });
      }
    }
}

TEST_CASE("trap: the groups of an optimizer get another parameter") {
  const Parameter a = scalar("a", 1), b = scalar("b", 1);
  const auto check_refused = [](auto& optimizer, const auto& change) {
    change(optimizer.groups());
    expect_error<StateError>("the parameters of its groups were changed",
                             [&] { optimizer.step(); });
  };
  optim::SGD sgd({a}, {.lr = 1, .momentum = 0.5});
  check_refused(sgd, [&](auto& groups) { groups[0].parameters.push_back(b); });
  optim::Adam adam({a}, {});
  check_refused(adam, [&](auto& groups) { groups.push_back({{b}, {}}); });
  optim::Adam swapped({a, b}, {});
  check_refused(swapped, [](auto& g) { std::swap(g[0].parameters[0], g[0].parameters[1]); });
  optim::SGD not_a_number({a}, {.lr = 1});
  not_a_number.groups()[0].options.lr = std::nan("");
  expect_error<UsageError>("[SGD] lr must be in", [&] { not_a_number.step(); });
}

TEST_CASE("exp of f64 ends at 0, wherever it is used") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const std::int64_t n : {1, 16, 17, 40}) {
    for (const double x : {-infinity, -1e300, -746.0, -740.0, -720.0, -709.0, -700.0, 0.0, 1.0}) {
      CAPTURE(x);
      const Tensor y = exp(Tensor::full({n}, x, DType::f64));
      for (const double value : y.to_vector<double>())
        CHECK(value == doctest::Approx(std::exp(x)).epsilon(x < -708 ? 1e-3 : 1e-14));
      if (x < -746) CHECK(y.to_vector<double>().back() == 0);
    }
    // A mask of -infinity.
    const Tensor row = Tensor::full({1, n + 1}, -infinity, DType::f64);
    row.data<double>()[n] = 3;
    const Tensor probabilities = Tensor::empty({1, n + 1}, DType::f64);
    kernels::softmax(row, probabilities);
    const std::vector<double> p = probabilities.to_vector<double>();
    CHECK(p.front() == 0);
    CHECK(p.back() == 1);
  }
}

TEST_CASE("a bias of 16 bits gets its gradient") {
  const Parameter w(rows(0, 2).clone(), "w");
  const Parameter b(Tensor::of<float>({2}, {0.5f, -1}), "b");
  for (const DType narrow : {DType::bf16, DType::f16}) {
    b.zero_grad();
    Tape tape;
    const Tensor x = cast(Tensor::full({3, 4}, 0.25), narrow);
    const Tensor weights = cast(Tensor::full({2, 4}, 0.5), narrow);
    const Tensor bias = cast(b, narrow);  // used twice: its gradient adds up
    const Tensor y = linear(x, weights, bias), more = cast(Tensor::full({5, 4}, 0.25), narrow);
    tape.backward(sum(cast(y, DType::f32)) + sum(cast(linear(more, weights, bias), DType::f32)));
    CHECK(b.gradient().to_vector<float>() == std::vector<float>{8, 8});
  }
}
