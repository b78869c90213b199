// Mistakes that would be silent: each is refused, or made right, by name.

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/lockstep.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;

namespace {

Parameter one(const std::string& name, double value = 1) {
  return Parameter(Tensor::full({1}, value), name);
}

/// What `body` throws on this rank.
template <class Body>
std::string thrown(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

void expect_in(const std::string& text, std::string_view part) {
  check<Error>(text.find(part) != std::string::npos, "'{}' says nothing of '{}'", text, part);
}

/// Every rank of a world of two refuses with this text: with its own error, or, if the other one
/// was faster, with the echo of that, which may reach it in whatever it is doing.
void refuse(std::string_view part, const std::function<void(World&)>& body) {
  run_threads(2, {}, [&](World& world) { expect_in(thrown([&] { body(world); }), part); });
}

void backward(const Tensor& loss, std::optional<Weight> weight = {}, BackwardOptions options = {}) {
  Tape::current()->backward(loss, weight, options);
}

}  // namespace

TEST_CASE("a local gradient that was stepped on cannot be accumulated to") {
  refuse("stepped on the local gradient of 'w'", [](World& world) {
    const Parameter w = one("w");
    dist::DistributedDataParallel ddp({w}, {}, world);
    optim::SGD optimizer({w}, {.lr = 1});
    Tape tape;
    backward(scale(sum(w), 3), Weight{8}, {.sync = false});
    optimizer.step(optim::local);
    check<Error>(w.value().item() == 1 - 3, "the mean of the window, not its sum: {}",
                 w.value().item());
    backward(scale(sum(w), 3), Weight{8}, {.sync = false});
  });
}

TEST_CASE("zeroing a part of the gradients within a window is refused") {
  refuse("'a' was zeroed within a window", [](World& world) {
    const Parameter a = one("a"), b = one("b");
    dist::DistributedDataParallel ddp({a, b}, {}, world);
    Tape tape;
    backward(sum(a * b), {}, {.sync = false});
    a.zero_grad();
    backward(sum(a * b));
  });
}

TEST_CASE("parameters under DDP and others are not clipped together") {
  run_threads(2, {}, [](World& world) {
    const Parameter w = one("w"), own = one("own");
    own.keep_local();
    dist::DistributedDataParallel ddp({w}, {}, world);
    Tape tape;
    backward(sum(w * own));
    expect_in(thrown([&] { optim::clip_grad_norm({w, own}, 1); }), "'w' and 'own'");
    check<Error>(optim::clip_grad_norm({w}, 1).item() == 1, "clipping apart");
  });
}

TEST_CASE("local steps are clipped by their own norm") {
  run_threads(2, {}, [](World& world) {
    const Parameter w = one("w");
    dist::DistributedDataParallel ddp({w}, {}, world);
    optim::SGD optimizer({w}, {.lr = 1});
    Tape tape;
    backward(scale(sum(w), 4), Weight{5}, {.sync = false});
    expect_in(thrown([&] { optim::clip_grad_norm({w}, 1); }), "not synchronized");
    check<Error>(optim::clip_grad_norm({w}, 2, optim::local).item() == 4, "the norm");
    optimizer.step(optim::local);
    check<Error>(std::abs(w.value().item() + 1) < 1e-6, "1 - 2, not {}", w.value().item());
  });
}

TEST_CASE("a parameter that is kept local has no gradient where the total is unknown") {
  refuse("'own' (kept local)", [](World& world) {
    const Parameter w = one("w"), own = one("own");
    own.keep_local();
    dist::DistributedDataParallel ddp({w}, {}, world);
    Tape tape;
    backward(sum(w * own), Weight{4, 8});
    check<Error>(own.gradient().item() == 0.5, "seeded with weight / total");
    w.zero_grad();
    backward(sum(w * own), Weight{4});
  });
}

TEST_CASE("a new head on a frozen backbone: its optimizer refuses it") {
  run_threads(2, {}, [](World& world) {
    const Parameter body = one("body"), head = one("head");
    dist::DistributedDataParallel ddp({body}, {}, world);
    optim::SGD optimizer({body, head}, {.lr = 1});
    {
      Tape tape;
      backward(sum(body));
    }
    optimizer.step();
    optimizer.zero_grad();
    body.set_requires_grad(false);
    Tape tape;
    backward(sum(head));  // it reaches nothing that is managed
    ddp.synchronize();
    expect_in(thrown([&] { optimizer.step(); }), "'head' is not under DistributedDataParallel");
  });
}

TEST_CASE("an optimizer over two DDPs steps after a backward that reaches either of them") {
  for (const bool reaches_first : {true, false}) {
    run_threads(2, {}, [=](World& world) {
      const Parameter a = one("a", 2), b = one("b", 3);
      dist::DistributedDataParallel first({a}, {}, world), second({b}, {}, world);
      optim::SGD optimizer({a, b}, {.lr = 1});
      for (const bool both : {true, false}) {
        optimizer.zero_grad();
        Tape tape;
        backward(sum(both ? a + b : reaches_first ? scale(a, 1) : scale(b, 1)));
        optimizer.step();
      }
      test::expect(a.value().item() == (reaches_first ? 0 : 1), "a is {}", a.value().item());
      test::expect(b.value().item() == (reaches_first ? 2 : 1), "b is {}", b.value().item());
    });
  }
}

TEST_CASE("a second step on the same gradients is refused") {
  run_threads(2, {}, [](World& world) {
    const Parameter w = one("w");
    dist::DistributedDataParallel ddp({w}, {}, world);
    optim::SGD optimizer({w}, {.lr = 1});
    Tape tape;
    backward(sum(w));
    optimizer.step();
    expect_in(thrown([&] { optimizer.step(); }), "nothing was synchronized since the last step");
  });
}

TEST_CASE("an optimizer that outlives its DDP steps on the first gradients of the next one") {
  run_threads(2, {}, [](World& world) {
    const Parameter w = one("w");
    optim::SGD optimizer({w}, {.lr = 1});
    for (int made = 0; made < 3; ++made) {
      dist::DistributedDataParallel ddp({w}, {}, world);
      Tape tape;
      backward(sum(w));
      optimizer.step();
      optimizer.zero_grad();
    }
    test::expect(w.value().item() == -2, "{} instead of 1 - 3", w.value().item());
  });
}

TEST_CASE("a step that is skipped leaves BatchNorm's statistics as they were") {
  for (const int size : {1, 2})
    run_threads(size, {}, [](World& world) {
      manual_seed(0);
      nn::Sequential model{nn::BatchNorm(3), nn::Linear(3, 2)};
      dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world,
                                        {.nonfinite = dist::NonFinite::skip});
      const auto step = [&](double value) {
        Tensor x = Tensor::full({4, 3}, 1 + world.rank());
        for (int i = 0; i < 12; i += 2) x.data<float>()[i] = static_cast<float>(value);
        for (const Parameter& p : model.parameters()) p.zero_grad();
        Tape tape;
        backward(mean(model(x)));
        return ddp.last_step().verdict;
      };
      const auto statistics = [&] { return model.buffers()[0].value.to_vector<float>(); };
      check<Error>(step(3) == dist::StepVerdict::commit, "the first step");
      const auto before = statistics();
      const double bad = world.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 2;
      check<Error>(step(bad) == dist::StepVerdict::skip, "the bad step");
      check<Error>(statistics() == before, "statistics of a skipped step");
      check<Error>(step(4) == dist::StepVerdict::commit && statistics() != before, "the next step");
    });
}

TEST_CASE("a sum that overflows is found after the reduction, on all ranks") {
  for (const auto policy : {dist::NonFinite::skip, dist::NonFinite::stop})
    run_threads(2, {}, [&](World& world) {
      const Parameter w = one("w");
      dist::DistributedDataParallel ddp({w}, {}, world, {.nonfinite = policy});
      const auto run = [&] {
        Tape tape;
        backward(scale(sum(w), 3e38), Weight{1, 1});
      };
      if (policy == dist::NonFinite::stop)
        return expect_in(thrown(run), "finite on each rank, but not");
      run();
      check<Error>(ddp.last_step().verdict == dist::StepVerdict::skip && !w.gradient().defined(),
                   "skipped");
    });
}

TEST_CASE("two models in one backward, with branches that differ between ranks") {
  run_threads(3, {}, [](World& world) {
    const Parameter a = one("a", 2), b = one("b", 3), c = one("c", 5);
    dist::DistributedDataParallel first({a, b}, {}, world, {.bucket_cap_mb = 1e-6});
    dist::DistributedDataParallel second({c}, {}, world);
    for (int step = 0; step < 6; ++step) {
      for (const Parameter& p : {a, b, c}) p.zero_grad();
      Tape tape;
      // Rank `step % 3` does not use b; the order of the terms is another one on rank 1.
      const bool uses_b = world.rank() != step % 3;
      Tensor loss = world.rank() == 1 ? sum(c) + sum(a) : sum(a) + sum(c);
      if (uses_b) loss = loss + sum(b);
      backward(loss);
      check<Error>(a.gradient().item() == 1.0f && c.gradient().item() == 1.0f, "a and c");
      check<Error>(std::abs(b.gradient().item() - 2.0 / 3) < 1e-6, "b: {}", b.gradient().item());
    }
  });
}

TEST_CASE("nothing to train: nobody has to be waited for") {
  run_threads(2, {}, [](World& world) {
    dist::DistributedDataParallel ddp({}, {}, world);
    check<Error>(!ddp.join(), "join");
  });
}

TEST_CASE("a batch of this rank's part is refused for a model that no DDP manages") {
  run_threads(2, {}, [](World& world) {
    const data::TensorDataset samples({{"x", Tensor::rand({8, 1})}});
    nn::Linear model(1, 1), another(1, 1);
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    for (const data::Batch& batch : data::Loader(samples, {.batch = 4}, world)) {
      Tape tape;
      const Tensor loss = mean(model(batch.x));
      expect_in(thrown([&] { tape.backward(loss, batch.weight); }),
                "' is not under DistributedDataParallel");
      tape.backward(loss, Weight{batch.weight.local});  // on purpose: this rank's own model
    }
    // The optimizer and the loop have another model than DistributedDataParallel.
    const dist::DistributedDataParallel ddp(another.parameters(), {}, world);
    for (const data::Batch& batch : data::Loader(samples, {.batch = 4}, world)) {
      Tape tape;
      const Tensor loss = mean(model(batch.x));
      expect_in(thrown([&] { tape.backward(loss, batch.weight); }), "the model replaced after it");
    }
  });
}

TEST_CASE("an optimizer refuses an empty list of parameters") {
  CHECK_THROWS_WITH_AS(optim::SGD(std::vector<Parameter>{}, {.lr = 0.1}),
                       "[optimizer] there are no parameters", UsageError);
}
