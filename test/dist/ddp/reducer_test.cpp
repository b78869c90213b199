// The reducer on simulated worlds: the weighted mean, readiness without flags, order, errors.

#include "lockstep/dist/ddp/reducer.h"

#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/autograd/ops.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

void run(const SimOptions& options, Algorithm algorithm,
         const std::function<void(Communicator&)>& program) {
  test::run_simulated(options, program, {.algorithm = algorithm});
}

struct Chain {
  std::vector<Parameter> parameters;
  explicit Chain(int layers, std::int64_t width = 5) {
    for (int k = 0; k < layers; ++k) {
      Tensor value = Tensor::empty({width, width}, DType::f64);
      for (std::int64_t i = 0; i < value.numel(); ++i)
        value.data<double>()[i] = std::sin(static_cast<double>(i + 31 * k + 1)) / 2;
      parameters.emplace_back(value, fmt::format("w{}", k));
    }
  }
  /// Mean over the rows; uses layer k if bit k is set.
  Tensor loss(const Tensor& x, unsigned used) const {
    Tensor y = x;
    for (std::size_t k = 0; k < parameters.size(); ++k)
      if (used >> k & 1) y = tanh(matmul(y, parameters[k]));
    return mean(y * y);
  }
};

/// Rows [begin, end) of a fixed data set.
Tensor rows(std::int64_t begin, std::int64_t end, std::int64_t width = 5) {
  Tensor x = Tensor::empty({end - begin, width}, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<double>()[i] = std::cos(0.7 * static_cast<double>(begin * width + i));
  return x;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    worst = std::max(worst, std::abs(a.data<double>()[i] - b.data<double>()[i]));
  return worst;
}

}  // namespace

TEST_CASE("several backwards before one step add up, though each of them synchronizes") {
  run({.size = 3}, Algorithm::two_shot, [&](Communicator& communicator) {
    const Chain model(2), expected(2);
    Reducer reducer(model.parameters, communicator, {.bucket_cap_mb = test::mebibytes(1 << 20)});
    for (int part = 0; part < 3; ++part) {
      const unsigned used = part == 1 ? 1 : 3;  // once without the second layer
      for (int r = 0; r < 3; ++r) {
        Tape tape;
        tape.backward(expected.loss(rows(4 * r + part, 4 * r + part + 1), used), Weight{1, 3});
      }
      const int first = 4 * communicator.rank() + part;
      Tape tape;
      tape.backward(model.loss(rows(first, first + 1), used));
    }
    for (std::size_t k = 0; k < 2; ++k)
      check<Error>(largest_difference(model.parameters[k].gradient(),
                                      expected.parameters[k].gradient()) < 1e-14,
                   "w{} differs", k);
  });
}

TEST_CASE("a rank of weight 0 adds nothing, even from NaN") {
  run({.size = 2}, Algorithm::two_shot, [&](Communicator& communicator) {
    const Chain model(2), expected(2);
    Reducer reducer(model.parameters, communicator, {.bucket_cap_mb = test::mebibytes(1 << 20)});
    {
      Tape tape;
      tape.backward(expected.loss(rows(0, 3), 3));
    }
    const Tensor x = rows(0, 3);
    if (communicator.rank() == 1) x.fill(std::nan(""));
    Tape tape;
    tape.backward(model.loss(x, 3), communicator.rank() == 0 ? Weight{3, 3} : Weight{0, 3});
    check<Error>(largest_difference(model.parameters[0].gradient(),
                                    expected.parameters[0].gradient()) < 1e-14,
                 "differs");
  });
}

TEST_CASE("direct: the same bits for any bucket cap, with and without shared memory") {
  std::vector<std::vector<double>> results;
  for (const std::size_t cap : {std::size_t{1}, std::size_t{450}, std::size_t{1} << 20})
    for (const bool shared : {true, false}) {
      std::vector<double> bits;
      run({.seed = cap, .size = 3, .shared_memory = shared}, Algorithm::two_shot,
          [&](Communicator& communicator) {
            const Chain model(4);
            Reducer reducer(model.parameters, communicator,
                            {.bucket_cap_mb = test::mebibytes(cap)});
            const int first = 3 * communicator.rank();
            Tape tape;
            tape.backward(model.loss(rows(first, first + 3), 15));
            if (communicator.rank() == 1)
              for (const Parameter& p : model.parameters)
                for (const double value : p.gradient().to_vector<double>()) bits.push_back(value);
          });
      results.push_back(bits);
    }
  for (const auto& bits : results) CHECK(bits == results[0]);
}

TEST_CASE("buckets travel while backward goes on") {
  // Bucket 0 holds the last layer. By the time that the first layer's gradient is ready, the ranks
  // have had transport calls enough to finish it.
  const SimOptions options{.size = 2, .max_delay = Seconds(0), .switch_one_in = 1};
  run(options, Algorithm::two_shot, [&](Communicator& communicator) {
    struct Watch : GradientObserver {
      std::vector<double> seen;
      const Parameter* last = nullptr;
      void gradient_ready(const Parameter&) override {
        seen.push_back(last->gradient_slot().data<double>()[0]);
      }
    } watch;
    const Chain model(12);
    watch.last = &model.parameters[11];
    std::vector<Observation> observations;  // before the reducer's: told before it launches
    for (const Parameter& p : model.parameters) observations.push_back(p.observe(watch));
    Reducer reducer(model.parameters, communicator, {.bucket_cap_mb = test::mebibytes(1)});
    check<Error>(reducer.buckets().places().buckets.size() == 12, "12 buckets");
    const int r = communicator.rank();
    Tape tape;
    tape.backward(model.loss(rows(r, r + 1), 0xfff));
    const double reduced = model.parameters[11].gradient().data<double>()[0];
    check<Error>(watch.seen.size() == 12 && watch.seen.front() != reduced, "still local at first");
    check<Error>(watch.seen.back() == reduced, "reduced before backward ended");
  });
}

TEST_CASE("a backward left by an exception is not mixed up with the next one") {
  // Rank 1 fails midway, catches it, and goes on; rank 0 must not get gradients of two steps.
  const SimReport report =
      simulate({.size = 2}, [](int rank, std::unique_ptr<Transport> transport) {
        HostCommunicator communicator(std::move(transport), {.algorithm = Algorithm::two_shot});
        const Chain model(3);
        Reducer reducer(model.parameters, communicator, {.bucket_cap_mb = test::mebibytes(1)});
        const auto step = [&](bool fails) {
          Tape tape;
          Tensor y = matmul(rows(0, 2), model.parameters[0]);
          if (fails)
            y = record("failing", y.detach().clone(), {&y},
                       [](Gradients&) { fail<StateError>("[failing] on purpose"); });
          tape.backward(mean(matmul(matmul(y, model.parameters[1]), model.parameters[2])));
        };
        try {
          step(rank == 1);
        } catch (const StateError&) {
        }
        step(false);
      });
  for (const std::exception_ptr& error : report.errors) {
    REQUIRE(error);
    CHECK_THROWS_AS(std::rethrow_exception(error), CommError);
  }
}

TEST_CASE("a rank alone goes on after a backward left by an exception, as if it had not been") {
  run_threads(1, {}, [](World& world) {
    for (const bool in_window : {false, true}) {
      const Parameter a(Tensor::scalar(2, DType::f64), "a"), b(Tensor::scalar(3, DType::f64), "b");
      Reducer reducer({a, b}, world.communicator());
      const auto backward = [&](const Tensor& loss, bool sync = true) {
        Tape::current()->backward(loss, Weight{1}, {.sync = sync});
      };
      if (in_window) {
        Tape tape;
        backward(a * b, false);
      }
      bool failed = false;
      try {
        Tape tape;
        const Tensor x = b;
        const Tensor bad = record("failing", x.detach().clone(), {&x},
                                  [](Gradients&) { fail<StateError>("[failing] on purpose"); });
        backward(scale(a, 100) + bad + scale(a, 1000));  // a's has a part before it fails
      } catch (const StateError&) {
        failed = true;
      }
      check<Error>(failed, "nothing was thrown");
      for (const Parameter& p : {a, b})
        check<Error>(p.gradient_state() == GradientState::nothing, "{} has a gradient", p.name());
      Tape tape;
      backward(scale(a, 5) + scale(b, 7));
      check<Error>(a.gradient().item() == 5, "a: {}", a.gradient().item());
      check<Error>(b.gradient().item() == 7, "b: {}", b.gradient().item());
    }
  });
}

TEST_CASE("a parameter has one reducer and is listed once") {
  run({.size = 2}, Algorithm::two_shot, [&](Communicator& communicator) {
    const Chain model(2);
    const auto refused = [&](std::vector<Parameter> parameters) {
      try {
        Reducer reducer(parameters, communicator, {.bucket_cap_mb = test::mebibytes(100)});
      } catch (const Error&) {
        return true;
      }
      return false;
    };
    check<Error>(refused({model.parameters[0], model.parameters[0]}), "twice in one");
    const Reducer reducer(model.parameters, communicator, {.bucket_cap_mb = test::mebibytes(100)});
    check<Error>(refused({model.parameters[1]}), "in two");
  });
}

TEST_CASE("gradient memory goes back to the parameters when the reducer goes") {
  run({.size = 2}, Algorithm::two_shot, [&](Communicator& communicator) {
    const Chain model(2);
    {
      const Reducer reducer(model.parameters, communicator,
                            {.bucket_cap_mb = test::mebibytes(1 << 20)});
      check<Error>(model.parameters[0].managed(), "managed");
    }
    check<Error>(!model.parameters[0].managed(), "not managed any more");
    Tape tape;
    tape.backward(model.loss(rows(0, 1), 3));
    check<Error>(model.parameters[0].gradient_state() == GradientState::local, "local");
  });
}

TEST_CASE("a sum that is not finite is no rank's fault, whichever rank has no data") {
  constexpr double half_of_infinity = 1.5e308;
  for (int without = 0; without < 3; ++without)
    run({.size = 3}, Algorithm::two_shot, [&](Communicator& communicator) {
      const Parameter w(Tensor::full({2}, 1, DType::f64), "w");
      Reducer reducer({w}, communicator, {.nonfinite = NonFinite::stop});
      try {
        Tape tape;
        const bool has_data = communicator.rank() != without;
        const Tensor loss = sum(mul(w, Tensor::full({2}, half_of_infinity, DType::f64)));
        tape.backward(loss, Weight{has_data ? 1 : 0});
      } catch (const StateError& error) {
        const std::string text = error.what();
        check<Error>(text.find("finite on each rank, but not their sum") != text.npos, "{}", text);
        check<Error>(!error.blame, "blames {}", error.blame ? text_of(*error.blame) : "");
        return;
      }
      fail<Error>("the sum was taken");
    });
}
