// PowerSGD on simulated worlds: what is sent and what is kept, against the gradients themselves.

#include "lockstep/dist/ddp/hooks/power_sgd.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "lockstep/lockstep.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using lockstep::test::check_all_well;
using lockstep::test::distance;
using lockstep::test::expect;

namespace {

void on_ranks(int size, const std::function<void(HostCommunicator&)>& body) {
  for (const bool shared : {false, true})
    check_all_well(
        test::messages_simulated({.seed = 4, .size = size, .shared_memory = shared}, body));
}

/// Full rank; different for every rank, step and index.
Tensor matrix(std::int64_t m, std::int64_t n, int rank, int step) {
  const Tensor result = Tensor::empty({m, n}, DType::f64);
  for (std::int64_t i = 0; i < m * n; ++i)
    result.data<double>()[i] =
        std::sin(static_cast<double>(i * i % 101 + 7 * i + 3) + 1.7 * rank + 0.3 * step);
  return result;
}

/// A loss whose gradient with respect to `p` is g.
Tensor loss(const Parameter& p, const Tensor& g) { return sum(Tensor(p) * g); }

Tensor plus(const Tensor& a, double factor, const Tensor& b) {
  const Tensor result = a.clone();
  for (std::int64_t i = 0; i < a.numel(); ++i)
    result.data<double>()[i] += factor * b.data<double>()[i];
  return result;
}

double length(const Tensor& a) {
  double square = 0;
  for (const double x : a.span<double>()) square += x * x;
  return std::sqrt(square);
}

struct Layer {
  Parameter weight{Tensor::zeros({12, 20}, DType::f64), "weight"};
  Parameter bias{Tensor::zeros({12}, DType::f64), "bias"};
  std::vector<Parameter> parameters() const { return {weight, bias}; }
  void backward(int rank, int step) const {
    Tape tape;
    tape.backward(
        loss(weight, matrix(12, 20, rank, step)) + loss(bias, matrix(1, 12, rank, step).view({12})),
        Weight{1, 1});
  }
  void zero_grad() const {
    weight.zero_grad();
    bias.zero_grad();
  }
};

}  // namespace

TEST_CASE(
    "orthonormalize: columns of length 1 at right angles; of dependent ones nothing is left") {
  for (const std::int64_t r : {1, 2, 5}) {
    const Tensor p = matrix(40, r, 0, 0);
    CHECK(orthonormalize(p).empty());
    for (std::int64_t a = 0; a < r; ++a)
      for (std::int64_t b = 0; b < r; ++b) {
        double dot = 0;
        for (std::int64_t i = 0; i < 40; ++i)
          dot += p.data<double>()[i * r + a] * p.data<double>()[i * r + b];
        CHECK(std::abs(dot - (a == b ? 1 : 0)) < 1e-14);
      }
  }
  // (1, 0), (2, 0), (3, 4) as columns: the second depends on the first.
  const Tensor p = Tensor::of<float>({2, 3}, {1, 2, 3, 0, 0, 4});
  CHECK(orthonormalize(p) == std::vector<std::int64_t>{1});
  CHECK(p.to_vector<float>() == std::vector<float>{1, 0, 0, 0, 0, 1});
  CHECK(orthonormalize(Tensor::zeros({3, 2})) == std::vector<std::int64_t>{0, 1});
}

TEST_CASE("what is sent and what is kept add up to the gradients, step after step") {
  for (const int size : {1, 2, 3, 4})
    on_ranks(size, [&](HostCommunicator& c) {
      const Layer layer;
      const auto hook = power_sgd({.rank = 3});
      DistributedDataParallel ddp(layer.parameters(), {}, c, {.hook = hook});
      Tensor sent = Tensor::zeros({12, 20}, DType::f64), given = sent.clone();
      for (int step = 0; step < 6; ++step) {
        const Tensor before = hook->kept(layer.weight).clone();
        layer.backward(c.rank(), step);
        const Tensor after = hook->kept(layer.weight);
        // Of all ranks: gradient + what was kept = the sum + what is kept now.
        const Tensor mine = plus(plus(matrix(12, 20, c.rank(), step), 1, before), -1, after);
        c.all_reduce(mine, "sent by all").wait();
        const Tensor sum = layer.weight.gradient();
        expect(distance(mine, sum) < 1e-13, "step {}: off by {}", step, distance(mine, sum));
        // So over all steps: what was given and not sent yet is what is kept.
        sent = plus(sent, 1, sum);
        for (int r = 0; r < size; ++r) given = plus(given, 1, matrix(12, 20, r, step));
        const Tensor kept = after.clone();
        c.all_reduce(kept, "kept by all").wait();
        expect(distance(plus(given, -1, sent), kept) < 1e-12, "over {} steps", step + 1);
        expect(length(kept) > 0.1 * length(sum), "rank 3 is enough for this matrix");
        // The bias travels as it is.
        for (std::int64_t i = 0; i < 12; ++i) {
          double right = 0;
          for (int r = 0; r < size; ++r) right += matrix(1, 12, r, step).data<double>()[i];
          expect(std::abs(layer.bias.gradient().data<double>()[i] - right) < 1e-14, "bias {}", i);
        }
        layer.zero_grad();
      }
    });
}

TEST_CASE("a matrix of rank r arrives whole, and nothing is kept") {
  on_ranks(3, [](HostCommunicator& c) {
    const Parameter p(Tensor::zeros({15, 11}, DType::f64), "p");
    const auto hook = power_sgd({.rank = 2});
    DistributedDataParallel ddp({p}, {}, c, {.hook = hook});
    // Columns of all ranks' gradients lie in one plane: u_i v_j + w_i x_j with u and w alike.
    const auto gradient = [](int rank) {
      const Tensor g = Tensor::empty({15, 11}, DType::f64);
      for (std::int64_t i = 0; i < 15; ++i)
        for (std::int64_t j = 0; j < 11; ++j)
          g.data<double>()[i * 11 + j] = std::sin(i + 1.0) * std::cos(j * 2.0 + rank) +
                                         std::cos(3.0 * i) * std::sin(j + 5.0 * rank);
      return g;
    };
    Tape tape;
    tape.backward(loss(p, gradient(c.rank())), Weight{1, 1});
    const Tensor right = plus(plus(gradient(0), 1, gradient(1)), 1, gradient(2));
    expect(distance(p.gradient(), right) < 1e-13, "off by {}", distance(p.gradient(), right));
    expect(length(hook->kept(p)) < 1e-13, "kept {}", length(hook->kept(p)));
  });
}

TEST_CASE("replicas stay alike, and the same run has the same bits") {
  std::vector<std::string> runs;
  for (int run = 0; run < 2; ++run)
    on_ranks(3, [&](HostCommunicator& c) {
      const Layer layer;
      optim::SGD optimizer(layer.parameters(), {.lr = 0.1, .momentum = 0.9});
      DistributedDataParallel ddp(layer.parameters(), {}, c, {.hook = power_sgd({.rank = 2})});
      for (int step = 0; step < 4; ++step) {
        layer.backward(c.rank(), step);
        optimizer.step();
        optimizer.zero_grad();
      }
      expect(test::replicas_agree(c, layer.parameters()), "replicas differ");
      if (c.rank() == 0) runs.push_back(parameter_digest(layer.parameters()));
    });
  for (const std::string& digest : runs) CHECK(digest == runs[0]);
}

TEST_CASE("start_after: gradients travel as they are at first") {
  for (const double cap_mb : {25.0, 1e-6})  // one bucket, and one of each parameter
    on_ranks(2, [=](HostCommunicator& c) {
      const Layer layer;
      const auto hook = power_sgd({.rank = 1, .start_after = 2});
      DistributedDataParallel ddp(layer.parameters(), {}, c,
                                  {.bucket_cap_mb = cap_mb, .hook = hook});
      for (int step = 0; step < 4; ++step) {
        layer.backward(c.rank(), step);
        const Tensor right = plus(matrix(12, 20, 0, step), 1, matrix(12, 20, 1, step));
        const double off = distance(layer.weight.gradient(), right);
        expect((off == 0) == (step < 2), "step {}: off by {}", step, off);
        expect((length(hook->kept(layer.weight)) == 0) == (step < 2), "kept in step {}", step);
        layer.zero_grad();
      }
    });
}

TEST_CASE("a gradient of zeros does not end what is learned of a matrix") {
  on_ranks(2, [](HostCommunicator& c) {
    const Layer layer;
    const auto hook = power_sgd({.rank = 2});
    DistributedDataParallel ddp({layer.weight}, {}, c, {.hook = hook});
    for (int step = 0; step < 3; ++step) {
      Tape tape;
      const Tensor g = matrix(12, 20, c.rank(), step);
      tape.backward(loss(layer.weight, step == 0 ? Tensor::zeros({12, 20}, DType::f64) : g),
                    Weight{1, 1});
      expect((length(layer.weight.gradient()) > 1) == (step > 0), "step {}", step);
      layer.weight.zero_grad();
    }
  });
}

TEST_CASE("a step that is skipped leaves no NaN behind") {
  on_ranks(3, [](HostCommunicator& c) {
    const Layer layer;
    const auto hook = power_sgd({.rank = 2});
    DistributedDataParallel ddp({layer.weight}, {}, c,
                                {.nonfinite = NonFinite::skip, .hook = hook});
    for (int step = 0; step < 3; ++step) {
      const Tensor g = matrix(12, 20, c.rank(), step);
      if (step == 1 && c.rank() == 2)
        g.data<double>()[5] = std::numeric_limits<double>::quiet_NaN();
      Tape tape;
      tape.backward(loss(layer.weight, g), Weight{1, 1});
      expect((ddp.last_step().verdict == StepVerdict::skip) == (step == 1), "step {}", step);
      const double kept = length(hook->kept(layer.weight));
      expect(step == 1 ? kept == 0 : kept > 0, "step {} keeps {}", step, kept);
      if (step == 2)
        expect(std::isfinite(length(layer.weight.gradient())), "the gradient after a skipped step");
      layer.weight.zero_grad();
    }
  });
}

TEST_CASE("on the wire: r (m + n) elements of a matrix") {
  on_ranks(2, [](HostCommunicator& c) {
    const auto moved = [&](std::shared_ptr<CommunicationHook> hook) {
      const Parameter p(Tensor::zeros({64, 32}, DType::f64), "p");
      DistributedDataParallel ddp({p}, {}, c, {.rebuild_buckets = false, .hook = std::move(hook)});
      const std::uint64_t before = c.bytes_moved();
      Tape tape;
      tape.backward(loss(p, matrix(64, 32, c.rank(), 0)), Weight{1, 1});
      c.barrier("all").wait();
      return c.bytes_moved() - before;
    };
    // The step metadata of 2 ranks and 1 parameter: 89 elements. In a world of 2, S bytes of an
    // all-reduce move S bytes (one more or less where parts are unequal).
    const std::uint64_t plain = moved(nullptr), low = moved(power_sgd({.rank = 4}));
    expect(plain >= (64 * 32 + 88) * 8 && plain <= (64 * 32 + 90) * 8, "plain {}", plain);
    expect(low >= (4 * 96 + 88) * 8 && low <= (4 * 96 + 90) * 8, "low rank {}", low);
  });
}

TEST_CASE("power_sgd refuses options that make no sense") {
  CHECK_THROWS_WITH_AS(power_sgd({.rank = 0}), "[power_sgd] the rank must be at least 1, got 0",
                       UsageError);
  CHECK_THROWS_AS(power_sgd({.start_after = -1}), UsageError);
  CHECK(power_sgd({.rank = 2})->name() == "power_sgd rank 2 start_after 0");
}
