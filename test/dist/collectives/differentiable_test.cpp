// The two differentiable all-reduces, against gradients worked out by hand.

#include "lockstep/dist/collectives/differentiable.h"

#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/ddp/ddp.h"
#include "support/device.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using test::here;
using test::test_device;

namespace {

void run(int size, const std::function<void(Communicator&)>& program) {
  test::run_simulated({.seed = 3, .size = size}, program);
}

const std::vector<int> worlds = {1, 2, 3, 4, 7};

/// Rank r's element i.
double input_value(int r, std::int64_t i) { return 1 + 0.5 * r + 0.25 * static_cast<double>(i); }
/// The factor of rank r's loss.
double factor(int r) { return 1.0 / (1 + r); }

Tensor operand(int r, const Shape& shape, DType dtype) {
  const Tensor x = Tensor::empty(shape, dtype);
  visit_floating("operand", dtype, [&](auto zero) {
    for (std::int64_t i = 0; i < x.numel(); ++i)
      x.data<decltype(zero)>()[i] = static_cast<decltype(zero)>(input_value(r, i));
  });
  return here(x);
}

std::vector<double> values_of(const Tensor& x) {
  if (x.dtype() == DType::f64) return x.to_vector<double>();
  const auto elements = x.to_vector<float>();
  return {elements.begin(), elements.end()};
}

/// Element i of x must be expected(i).
void expect_all(const char* what, const Tensor& x,
                const std::function<double(std::int64_t)>& expected) {
  const double tolerance = x.dtype() == DType::f32 ? 1e-6 : 1e-14;
  const std::vector<double> values = values_of(x);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double right = expected(static_cast<std::int64_t>(i));
    check<Error>(std::abs(values[i] - right) <= tolerance * std::abs(right),
                 "{}: element {} is {}, not {}", what, i, values[i], right);
  }
}

const std::vector<Shape> shapes = {{}, {1}, {0}, {5}, {2, 3, 1}};

}  // namespace

TEST_CASE("varying: what the other ranks do with the sum comes back") {
  // l_q = factor_q * the sum over i of y_i^2, y = the sum of the x_r: dx_r = sum_q 2 factor_q y.
  for (const int size : worlds)
    for (const Shape& shape : shapes)
      for (const DType dtype : {DType::f32, DType::f64})
        run(size, [&](Communicator& communicator) {
          const int me = communicator.rank();
          const auto sum_of_x = [&](std::int64_t i) {
            double total = 0;
            for (int r = 0; r < size; ++r) total += input_value(r, i);
            return total;
          };
          double factors = 0;
          for (int r = 0; r < size; ++r) factors += factor(r);

          Tape tape;
          const Tensor x = tape.watch(operand(me, shape, dtype));
          const Tensor y = all_reduce_varying(x, communicator, "y");
          tape.backward(scale(sum(y * y), factor(me)));
          expect_all("y", y, sum_of_x);
          expect_all("x", x, [&](std::int64_t i) { return input_value(me, i); });
          expect_all("dx", tape.gradient(x),
                     [&](std::int64_t i) { return 2 * factors * sum_of_x(i); });
        });
}

TEST_CASE("invariant: one loss, whose gradient every rank holds already") {
  // l = the sum over i of y_i^2: dx_r = 2 y. Taking `varying` for it is wrong by the factor W.
  for (const int size : worlds)
    for (const Shape& shape : shapes)
      for (const DType dtype : {DType::f32, DType::f64})
        run(size, [&](Communicator& communicator) {
          const auto sum_of_x = [&](std::int64_t i) {
            double total = 0;
            for (int r = 0; r < size; ++r) total += input_value(r, i);
            return total;
          };
          for (const bool mixed_up : {false, true}) {
            Tape tape;
            const Tensor x = tape.watch(operand(communicator.rank(), shape, dtype));
            const Tensor y = mixed_up ? all_reduce_varying(x, communicator, "y")
                                      : all_reduce_invariant(x, communicator, "y");
            tape.backward(sum(y * y));
            expect_all("y", y, sum_of_x);
            expect_all("dx", tape.gradient(x),
                       [&](std::int64_t i) { return 2 * sum_of_x(i) * (mixed_up ? size : 1); });
          }
        });
}

TEST_CASE("under DDP: a loss that is summed already is given to backward with {1, 1}") {
  // l = the sum over ranks of sum((w * a_r)^2), a_r being rank r's data: dl/dw = sum_r 2 w a_r^2.
  for (const int size : {1, 2, 3})
    run_threads(size, {}, [&](World& world) {
      Communicator& communicator = world.communicator();
      const Parameter w(operand(5, {4}, DType::f64), "w");
      const DistributedDataParallel ddp({w}, {}, world);
      Tape tape;
      const Tensor part = w * operand(communicator.rank(), {4}, DType::f64);
      tape.backward(all_reduce_invariant(sum(part * part), communicator, "loss"), Weight{1, 1});
      expect_all("dw", w.gradient(), [&](std::int64_t i) {
        double total = 0;
        for (int r = 0; r < size; ++r)
          total += 2 * input_value(5, i) * input_value(r, i) * input_value(r, i);
        return total;
      });
    });
}

TEST_CASE("under DDP: losses of their own over a shared sum are averaged like any others") {
  // l_q = factor_q * sum(y), y = sum_r w * a_r, and the mean over q: dw = mean(factor) * sum_r a_r.
  for (const int size : {1, 2, 3})
    run_threads(size, {}, [&](World& world) {
      Communicator& communicator = world.communicator();
      const int me = communicator.rank();
      const Parameter w(operand(5, {4}, DType::f64), "w");
      const DistributedDataParallel ddp({w}, {}, world);
      Tape tape;
      const Tensor y = all_reduce_varying(w * operand(me, {4}, DType::f64), communicator, "y");
      tape.backward(scale(sum(y), factor(me)));
      expect_all("dw", w.gradient(), [&](std::int64_t i) {
        double factors = 0, data = 0;
        for (int r = 0; r < size; ++r) {
          factors += factor(r) / size;
          data += input_value(r, i);
        }
        return factors * data;
      });
    });
}

TEST_CASE("a parameter is an operand like any other, twice, too, and no tape is needed") {
  run(2, [](Communicator& communicator) {
    const Parameter w(operand(communicator.rank(), {3}, DType::f64), "w");
    const double both = 2 * input_value(0, 0) + 2 * input_value(1, 0);
    const auto doubled = [&] {
      const Tensor a = all_reduce_varying(w, communicator, "a");
      const Tensor b = all_reduce_invariant(w, communicator, "b");
      return a + b;
    };
    const double silent = values_of(doubled())[0];
    check<Error>(silent == both, "without a tape: {}", silent);
    Tape tape;
    tape.backward(sum(doubled()));
    expect_all("dw", w.gradient(), [](std::int64_t) { return 2 + 1; });
  });
}

TEST_CASE("a rank of weight 0 adds exact zeros to the others' gradients") {
  run(2, [](Communicator& communicator) {
    const bool counts = communicator.rank() == 0;
    Tape tape;
    const Tensor x = tape.watch(operand(communicator.rank(), {3}, DType::f64));
    const Tensor y = all_reduce_varying(x, communicator, "y");
    const Tensor f = Tensor::full({3}, counts ? 2 : std::nan(""), DType::f64, test_device());
    tape.backward(sum(y * f), counts ? Weight{1, 1} : Weight{0, 1});
    expect_all("dx", tape.gradient(x), [](std::int64_t) { return 2; });
  });
}

TEST_CASE("only f32 and f64 are differentiable") {
  run(1, [](Communicator& communicator) {
    const Tensor labels = Tensor::zeros({2}, DType::i64);
    for (const auto& call : {all_reduce_varying, all_reduce_invariant}) {
      std::string message;
      try {
        call(labels, communicator, "labels");
      } catch (const DTypeError& error) {
        message = error.what();
      }
      check<Error>(message.find("'labels' takes f32 or f64, got i64") != std::string::npos, "{}",
                   message);
    }
  });
}

TEST_CASE("the other collectives refuse what is recorded: it would change, or lose its gradient") {
  run(2, [](Communicator& communicator) {
    const Parameter w(Tensor::full({2}, communicator.rank(), DType::f64), "w");
    const Tensor other = Tensor::zeros({4}, DType::f64), part = Tensor::zeros({2}, DType::f64);
    Tape tape;
    const Tensor made = w * 2.0;
    const auto refused = [&](const char* call, const std::function<void(const Tensor&)>& with) {
      for (const Tensor& x : {made, Tensor(w), tape.watch(part)}) {
        std::string message;
        try {
          with(x);
        } catch (const StateError& error) {
          message = error.what();
        }
        check<Error>(message.starts_with(fmt::format("[{}] (2,) is ", call)), "{}", message);
        with(x.detach());
      }
    };
    refused("all_reduce", [&](const Tensor& x) { communicator.all_reduce(x, "x").wait(); });
    refused("broadcast", [&](const Tensor& x) { communicator.broadcast(x, 0, "x").wait(); });
    refused("all_gather", [&](const Tensor& x) { communicator.all_gather(x, other, "x").wait(); });
    refused("reduce_scatter",
            [&](const Tensor& x) { communicator.reduce_scatter(other, x, "x").wait(); });
  });
}
