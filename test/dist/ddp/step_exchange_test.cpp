// What ranks tell each other about a step: every field, of every rank, step after step, and what
// is counted of it. In virtual time.

#include "lockstep/dist/ddp/step_exchange.h"

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include "support/expect.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using test::expect;

namespace {

/// Every field says which rank it is of, and which step.
StepMetadata told_by(int rank, int step, const StepMetadata& all_ranks) {
  StepMetadata m = all_ranks;
  m.weight = rank + 1 + 10 * step;
  m.origin.part = static_cast<std::uint16_t>(rank);
  return m;
}

/// What the ranks agree on.
StepMetadata of_step(int size, int step) {
  StepMetadata m;
  m.divisor = 1;
  m.kind = Contribution::Divisor::summed;
  m.layout_digest = 7 + static_cast<std::uint64_t>(step);
  m.steps_digest = 100 + static_cast<std::uint64_t>(step);
  m.replica_fingerprint = ~std::uint64_t{0} - static_cast<std::uint64_t>(step);
  m.origin = {.deal_digest = 9, .step = step, .parts = static_cast<std::uint16_t>(size)};
  return m;
}

struct Exchanging {
  explicit Exchanging(HostCommunicator& communicator_, NonFinite policy = NonFinite::stop)
      : communicator(communicator_), exchange(communicator_, policy) {}

  StepOutcome once(const StepMetadata& mine) {
    exchange.mine = mine;
    exchange.write(exchange.mine);
    exchange.send(buckets);
    expect(exchange.mine.steps_digest == 0, "steps are told twice");
    const GradientBuckets::Bucket& last = buckets.all().back();
    communicator.all_reduce(last.wire, last.name).wait();
    const StepOutcome outcome = exchange.read(buckets);
    exchange.ended(outcome.verdict, outcome.source);
    return outcome;
  }

  HostCommunicator& communicator;
  std::vector<Parameter> parameters{Parameter(Tensor::zeros({3}), "w")};
  GradientBuckets buckets{parameters, communicator, {reverse_order(1), {}}, ""};
  StepExchange exchange;
};

void with_ranks(int size, const test::SimulatedRank& program) {
  test::run_simulated({.size = size}, program, {.algorithm = Algorithm::two_shot});
}

}  // namespace

TEST_CASE("step exchange: every rank reads every field of every rank, and nothing of before") {
  for (const int size : {1, 2, 3, 5})
    with_ranks(size, [size](HostCommunicator& communicator) {
      Exchanging ranks(communicator);
      for (int step = 0; step < 4; ++step) {
        StepMetadata like = of_step(size, step);
        like.joined = step == 3;
        like.already_reduced = step == 2;
        const StepOutcome outcome = ranks.once(told_by(communicator.rank(), step, like));
        for (int r = 0; r < size; ++r) {
          StepMetadata right = told_by(r, step, like);
          const StepMetadata& read = ranks.exchange.all()[index(r)];
          right.compute_seconds = read.compute_seconds;
          right.wait_seconds = read.wait_seconds;
          expect(std::memcmp(&right, &read, sizeof right) == 0, "step {}: other fields of {}", step,
                 r);
        }
        const double weight = size * (size + 1) / 2 + 10 * step * size;
        const StepReport& report = ranks.exchange.report();
        expect(outcome.weight == weight && report.weight == weight, "weight {}", report.weight);
        expect(report.all_joined == (step == 3), "all joined: {}", report.all_joined);
        const bool stops = step == 2 && outcome.scale != 1;
        expect(report.verdict == (stops ? StepVerdict::stop : StepVerdict::commit), "verdict {}",
               static_cast<int>(report.verdict));
        expect(ranks.exchange.statistics().steps == step + 1, "counted");
      }
    });
}

TEST_CASE("step exchange: verdicts are reported, whichever rank is the reason") {
  for (const int size : {2, 3})
    for (int odd = 0; odd < size; ++odd)
      with_ranks(size, [=](HostCommunicator& communicator) {
        for (const NonFinite policy : {NonFinite::skip, NonFinite::stop, NonFinite::report}) {
          Exchanging ranks(communicator, policy);
          StepMetadata mine = told_by(communicator.rank(), 0, of_step(size, 0));
          if (communicator.rank() == odd) mine.bad_parameter = 0, mine.bad_element = 2;
          const StepOutcome outcome = ranks.once(mine);
          expect(outcome.bad_rank == odd && outcome.nonfinite, "rank {}", outcome.bad_rank);
          expect(ranks.exchange.all()[index(odd)].bad_element == 2, "element");
          expect(ranks.exchange.report().verdict ==
                     (policy == NonFinite::skip ? StepVerdict::skip : StepVerdict::stop),
                 "verdict");
        }
      });
}

TEST_CASE("step exchange: after windows of different lengths origins say nothing any more") {
  with_ranks(3, [](HostCommunicator& communicator) {
    Exchanging ranks(communicator);
    const auto step_of = [&](int step) {
      StepMetadata mine = told_by(communicator.rank(), 0, of_step(3, 0));
      mine.origin.step = step;
      (void)ranks.once(mine);
      for (const StepMetadata& m : ranks.exchange.all())
        if (m.origin.deal_digest == 0)
          expect(m.origin.step == -1 && m.origin.parts == 0, "a part of an origin");
      return ranks.exchange.all()[0].origin.deal_digest != 0;
    };
    expect(step_of(0) && step_of(-2) && step_of(1), "origins are told");
    expect(step_of(communicator.rank() == 1 ? -3 : -2), "and so is the last one of them");
    for (int step = 2; step < 5; ++step) expect(!step_of(step), "an origin is told");
  });
}

TEST_CASE("step exchange: who computed for how long, who waited, and who was slowest") {
  constexpr int size = 3;
  constexpr double near = 0.1;  // seconds: longer than all delays of a step
  // Seconds that each rank computes in each step: another one is the slowest each time.
  const std::vector<std::vector<double>> seconds{{1, 2, 5}, {6, 2, 1}, {1, 7, 2}, {3, 2, 9}};
  with_ranks(size, [&](HostCommunicator& communicator) {
    compute(communicator.transport(), Seconds(4 + communicator.rank()));  // before there is one
    communicator.barrier("all are here").wait();
    Exchanging ranks(communicator);
    const auto close = [&](double got, double right, const char* what) {
      expect(std::abs(got - right) < near, "{}: {}, and should be {}", what, got, right);
    };
    std::vector<double> computed(size), waited(size);
    double exposed = 0;
    for (std::size_t step = 0; step < seconds.size(); ++step) {
      compute(communicator.transport(), Seconds(seconds[step][index(communicator.rank())]));
      (void)ranks.once(told_by(communicator.rank(), 0, of_step(size, 0)));
      const StepReport& report = ranks.exchange.report();
      const StepStatistics& all = ranks.exchange.statistics();
      const auto wait_of = [&](std::size_t of, std::size_t r) {
        return *std::ranges::max_element(seconds[of]) - seconds[of][r];
      };
      for (std::size_t r = 0; r < size; ++r) {
        const double wait = step == 0 ? 0 : wait_of(step - 1, r);
        close(report.compute_seconds[r], seconds[step][r], "computed");
        close(report.wait_seconds[r], wait, "waited");
        close(all.compute_seconds[r], computed[r] += seconds[step][r], "computed in all");
        close(all.wait_seconds[r], waited[r] += wait, "waited in all");
      }
      exposed += wait_of(step, index(communicator.rank()));
      close(all.exposed_seconds, exposed, "exposed");
    }
    expect(ranks.exchange.statistics().slowest == std::vector<std::int64_t>{1, 1, 2}, "slowest");
  });
}

TEST_CASE("step exchange: waiting within a step is no computing") {
  constexpr int size = 3;
  with_ranks(size, [&](HostCommunicator& communicator) {
    Exchanging ranks(communicator);
    for (int step = 0; step < 3; ++step) {
      const double own = 1 + communicator.rank();
      compute(communicator.transport(), Seconds(own));
      communicator.barrier("as layers do").wait();  // all come when the last one does
      compute(communicator.transport(), Seconds(0.5));
      (void)ranks.once(told_by(communicator.rank(), 0, of_step(size, 0)));
      for (int r = 0; r < size; ++r)
        expect(std::abs(ranks.exchange.report().compute_seconds[index(r)] - (r + 1.5)) < 0.1,
               "rank {} computed {}", r, ranks.exchange.report().compute_seconds[index(r)]);
    }
  });
}
