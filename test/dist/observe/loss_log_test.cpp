// dist::LossLog: means over the batches of all ranks; with lanes the same bits on any number of
// ranks.

#include "lockstep/dist/observe/loss_log.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <mutex>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/lanes.h"
#include "support/text.h"

using namespace lockstep;
using dist::LossLog;

namespace {

double loss_of(int rank, int step) { return 1.0F / static_cast<float>(3 + 7 * rank + step); }
double weight_of(int rank, int step) { return (rank + step) % 3 + (rank == 0); }  // 0, 1, 2 or 3

double f(double x) {
  const double d = x - std::exp(x);
  return 0.7 * (x * x - 0.3 * d * d);
}

/// The means of three steps over `rows` samples, on each rank of a world; all ranks have the same.
std::vector<double> means_with_lanes(int ranks, std::int64_t rows) {
  std::vector<double> means;
  std::mutex mutex;
  run_threads(ranks, {}, [&](World& world) {
    LossLog log;
    for (int step = 0; step < 3; ++step) {
      const auto lanes = std::make_shared<const Lanes>(rows, 8, Shard{world.rank(), ranks});
      const LaneScope scope(lanes);
      const Tensor all = Tensor::empty({rows, 3}, DType::f64);
      for (std::int64_t i = 0; i < all.numel(); ++i)
        all.data<double>()[i] = std::sin(static_cast<double>(100 * step + i));
      Tape tape;
      const std::int64_t begin = lanes->first_row();
      const Tensor x = tape.watch(of_samples(all.slice(begin, begin + lanes->rows()).clone()));
      Weight weight(lanes->rows(), step == 1 ? Weight::summed : static_cast<double>(rows));
      weight.lanes = 8;
      const Tensor other = mse(x, exp(x.detach())) * 0.3;
      const Tensor loss = -((other - mean(square(x))) * 0.7);
      log.add(loss, weight);
      double sum = 0;
      for (const double v : x.detach().span<double>()) sum += f(v);
      CHECK(loss.item() == doctest::Approx(x.numel() > 0 ? sum / x.numel() : 0).epsilon(1e-12));
    }
    std::vector<double> mine;
    for (const LossLog::Step& step : log.settle(world)) mine.push_back(step.mean());
    const std::lock_guard lock(mutex);
    CHECK(mine.size() == 3);
    if (!means.empty()) CHECK(mine == means);
    means = mine;
  });
  return means;
}

}  // namespace

TEST_CASE("loss log: the mean over the samples of all ranks, on all of them") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    run_threads(ranks, {}, [&](World& world) {
      LossLog log;
      for (int step = 0; step < 5; ++step) {
        double total = 0;
        for (int rank = 0; rank < ranks; ++rank) total += weight_of(rank, step);
        const double weight = weight_of(world.rank(), step);
        const double loss =
            weight > 0 ? loss_of(world.rank(), step) : std::numeric_limits<double>::quiet_NaN();
        log.add(Tensor::scalar(loss), Weight(weight, step % 2 == 0 ? total : Weight::summed));
      }
      CHECK(log.waiting() == 5);
      const std::vector<LossLog::Step> steps = log.settle(world);
      REQUIRE(steps.size() == 5);
      for (int step = 0; step < 5; ++step) {
        CAPTURE(step);
        double sum = 0, total = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          sum += weight_of(rank, step) * loss_of(rank, step);
          total += weight_of(rank, step);
        }
        const LossLog::Step& settled = steps[static_cast<std::size_t>(step)];
        CHECK(settled.sum == sum);
        CHECK(settled.samples == total);
        CHECK(settled.mean() == (total > 0 ? sum / total : 0));
        CHECK(settled.when <= std::chrono::system_clock::now());
      }
      CHECK(log.waiting() == 0);
      CHECK(log.settle(world).empty());
      log.add(Tensor::scalar(1), Weight(1));
      log.forget();
      CHECK(log.settle(world).empty());
    });
  }
}

TEST_CASE("loss log: with lanes the same bits on any number of ranks") {
  for (const std::int64_t rows : {0, 1, 5, 13, 64, 101}) {
    CAPTURE(rows);
    const std::vector<double> one = means_with_lanes(1, rows);
    for (const int ranks : {2, 3, 4, 7, 8}) {
      CAPTURE(ranks);
      CHECK(means_with_lanes(ranks, rows) == one);
    }
    for (int step = 0; step < 3; ++step) {
      double sum = 0;
      for (std::int64_t i = 0; i < 3 * rows; ++i) {
        sum += f(std::sin(static_cast<double>(100 * step + i)));
      }
      const double mean = rows == 0 ? 0 : sum / static_cast<double>(3 * rows);
      CHECK(one[static_cast<std::size_t>(step)] == doctest::Approx(mean).epsilon(1e-12));
    }
  }
}

TEST_CASE("loss log: a loss that does not know its lanes is refused, not averaged otherwise") {
  LossLog log;
  const auto message = [&](const Tensor& loss, int lanes) {
    Weight weight(4, 4);
    weight.lanes = lanes;
    try {
      log.add(loss, weight);
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  const LaneScope scope(std::make_shared<const Lanes>(4, 2, Shard{}));
  Tensor gone;
  {
    Tape tape;
    const Tensor x = tape.watch(of_samples(Tensor::ones({4, 2})));
    const Tensor loss = mean(x);
    CHECK(message(loss, 2) == "");
    CHECK(message(reshape(loss * 2.0, {1}), 2) == "");
    CHECK(test::contains(message(loss.detach(), 2), "has 2 lanes, and the loss knows none"));
    CHECK(test::contains(message(x, 2), "a loss of 8 elements: it has one"));
    CHECK(message(loss.detach(), 0) == "");  // a batch without lanes
    CHECK(message(loss, 0) == "");
    CHECK(test::contains(message(loss, 4),
                         "a weight of 4 of 4 in 4 lanes, for a loss of 4 of 4 in 2"));
    CHECK_THROWS_AS(log.add(loss, Weight(3, 4)), StateError);
    CHECK_THROWS_AS(log.add(loss, Weight(4, 5)), StateError);
    CHECK_THROWS_AS(tape.backward(loss,
                                  [] {
                                    Weight other(4, 4);
                                    other.lanes = 4;
                                    return other;
                                  }()),
                    StateError);
    tape.backward(loss, Weight(4, 4));
    CHECK(message(loss, 2) == "");
    gone = loss;
  }
  CHECK(test::contains(message(gone, 2), "while its tape lives"));
  CHECK(test::contains(message(Tensor(), 0), "a loss of 0 elements"));
  CHECK(log.waiting() == 5);
}

TEST_CASE("loss log: of a copy, of 16 bits, of another world") {
  LossLog log;
  const Tensor loss = Tensor::scalar(1);
  log.add(loss, Weight(2, 2));
  loss.fill(5);
  run_threads(1, {}, [&](World& world) { CHECK(log.settle(world).at(0).mean() == 1); });

  // What rank 1 of 2 has added, settled in a world without the other one.
  for (const int ranks : {1, 2}) {
    run_threads(ranks, {}, [&](World& world) {
      LossLog own;
      const LaneScope scope(std::make_shared<const Lanes>(6, 2, Shard{world.rank(), ranks}));
      Tape tape;
      const std::int64_t rows = tape.lanes()->rows();
      const Tensor all =
          Tensor::of<float>({6, 2}, {.1F, .2F, .3F, .4F, .5F, .6F, .7F, .8F, .9F, 1, 2, 3});
      const Tensor x = tape.watch(of_samples(all.slice(6 - rows, 6).clone()));
      own.add(mean(square(cast(x, DType::bf16))), Weight(rows, 6));
      if (ranks == 2 && world.rank() == 1)
        run_threads(1, {}, [&](World& alone) {
          CHECK_THROWS_WITH_AS(own.settle(alone), doctest::Contains("rank 0 of 1 does not own"),
                               StateError);
        });
    });
  }
}
