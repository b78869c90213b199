// Tensors that a recorded step makes anew, which its program keeps, passes on, or reads elsewhere:
// each call does what the plain step does, or says that it cannot.

#include <doctest/doctest.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "support/device.h"

namespace lockstep::test::made_in_step {
namespace {

Tensor full(double value) { return Tensor::full({3}, value, DType::f32, test_device()); }
float first_of(const Tensor& x) { return x.to_vector<float>()[0]; }

struct Program {
  Tensor x = full(0), last, other;
  std::vector<Tensor> all;
  std::deque<Tensor> queue{full(1), full(2)};
  std::vector<float> seen;
};

struct Case {
  const char* name;
  std::function<void(Program&)> step;
  std::function<void(Program&, int)> after;  ///< each call
  int replays;                               ///< at least; -1: the second call is refused
};

void make_last(Program& p) { p.last = mul(p.x, p.x); }

const Case cases[] = {
    {"a result that is read", make_last,
     [](Program& p, int) { p.seen.push_back(first_of(p.last)); }, 7},
    {"clones of all results", make_last, [](Program& p, int) { p.all.push_back(p.last.clone()); },
     7},
    {"a few results that are kept", make_last,
     [](Program& p, int i) {
       p.seen.push_back(first_of(p.last));
       if (i == 3) p.all.push_back(p.last);
     },
     5},
    {"results that are kept for a while", make_last,
     [](Program& p, int i) {
       p.seen.push_back(first_of(p.last));
       if (i == 3) p.other = p.last;
       if (i == 4) p.seen.push_back(first_of(p.other));
     },
     5},
    {"all results, kept from the first call on", make_last,
     [](Program& p, int) { p.all.push_back(p.last); }, -1},
    {"all results, kept in the step", [](Program& p) { p.all.push_back(mul(p.x, p.x)); },
     [](Program&, int) {}, -1},
    {"the results of the last two steps",
     [](Program& p) {
       p.queue.push_back(mul(p.x, p.x));
       p.queue.pop_front();
     },
     [](Program& p, int) {
       for (const Tensor& one : p.queue) p.seen.push_back(first_of(one));
     },
     -1},
    {"two names of a result, one of which is given up",
     [](Program& p) { p.last = p.other = mul(p.x, p.x); },
     [](Program& p, int i) {
       if (i == 3) p.other = full(-1);
       p.seen.push_back(first_of(p.other));
     },
     5},
};

struct Result {
  std::vector<float> seen;
  int replays = 0;
};

Result run(const Case& one, bool recorded) {
  Program p;
  Result result;
  StepGraph graph([&] { one.step(p); }, test_device());
  for (int i = 0; i < 8; ++i) {
    p.x.fill(i);
    recorded ? (void)(result.replays += graph()) : one.step(p);
    one.after(p, i);
  }
  result.seen = p.seen;
  for (const Tensor& one_of_all : p.all) result.seen.push_back(first_of(one_of_all));
  return result;
}

TEST_CASE("recorded steps: results that the program reads or keeps") {
  if (on_cpu()) return;
  for (const Case& one : cases) {
    CAPTURE(one.name);
    if (one.replays < 0) {
      CHECK_THROWS_WITH_AS(run(one, true), doctest::Contains("that outlives it"), StateError);
      continue;
    }
    const Result recorded = run(one, true);
    CHECK(recorded.seen == run(one, false).seen);
    CHECK(recorded.replays >= one.replays);
  }
}

TEST_CASE("recorded steps: a step that is also taken as it is, beside its recording") {
  if (on_cpu()) return;
  const auto train = [](bool recorded) {
    Program p;
    StepGraph graph([&] { make_last(p); }, test_device());
    for (int i = 0; i < 9; ++i) {
      p.x.fill(i);
      recorded&& i != 4 ? (void)graph() : make_last(p);
      p.seen.push_back(first_of(p.last));
    }
    return p.seen;
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("recorded steps: a tensor that one step makes and another one reads") {
  if (on_cpu()) return;
  const auto train = [](bool recorded) {
    const Parameter w(full(1), "w");
    optim::SGD sgd({w}, {.lr = 0.0625});
    Tensor feature;
    const Tensor seen = full(0), also = full(0);
    const auto first = [&] {
      feature = mul(w.value(), w.value());
      Tape tape;
      tape.backward(mean(mul(w, w)));
      sgd.step();
      sgd.zero_grad();
    };
    const auto second = [&] { seen.copy_from(mul(feature, feature)); };
    const auto third = [&] { also.copy_from(add(feature, feature)); };
    StepGraph a(first, test_device()), b(second, test_device()), c(third, test_device());
    std::vector<float> values;
    int replays = 0;
    for (int i = 0; i < 12; ++i) {
      if (i == 4) sgd.set_lr(0.03125);  // a is taken as it is: `feature` moves
      recorded ? (void)(replays += a()) : first();
      recorded ? (void)(replays += b()) : second();
      recorded ? (void)(replays += c()) : third();
      values.push_back(first_of(seen));
      values.push_back(first_of(also));
    }
    if (recorded) CHECK(replays >= 18);
    return values;
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("recorded steps: a tensor that is used, and that the program replaces") {
  if (on_cpu()) return;
  const auto train = [](bool recorded) {
    Tensor x = full(0);
    const Tensor seen = full(0);
    const auto step = [&] { seen.copy_from(mul(x, x)); };
    StepGraph graph(step, test_device());
    std::vector<float> values;
    int replays = 0;
    for (int i = 0; i < 9; ++i) {
      if (i % 4 == 3) x = full(i);
      recorded ? (void)(replays += graph()) : step();
      values.push_back(first_of(seen));
    }
    if (recorded) CHECK(replays >= 5);
    return values;
  };
  CHECK(train(true) == train(false));
}

TEST_CASE("recorded steps: work on a stream that the recording does not have") {
  if (on_cpu()) return;
  const Stream side = Stream::create(test_device());
  const Tensor x = full(1), y = full(0), seen = full(0);
  bool allocates = false;
  StepGraph astray(
      [&] {
        y.copy_from(x);
        const StreamGuard guard(side);
        if (allocates) (void)full(2);
        seen.copy_from(x);
      },
      test_device());
  for (const bool also : {false, true}) {
    allocates = also;
    CHECK_FALSE(astray());
    CHECK_THROWS_WITH_AS(astray(), doctest::Contains("a stream that does not wait for the step's"),
                         StateError);
  }
  // One that forks from the step's stream, and joins it again, is part of the recording.
  StepGraph joined(
      [&] {
        y.copy_from(add(x, x));
        const Event fork(test_device()), join(test_device());
        fork.record(Stream::current(test_device()));
        side.wait(fork);
        {
          const StreamGuard guard(side);
          seen.copy_from(mul(y, y));
        }
        join.record(side);
        Stream::current(test_device()).wait(join);
      },
      test_device());
  for (int i = 0; i < 4; ++i) {
    x.fill(i);
    CHECK(joined() == (i > 0));
    CHECK(first_of(seen) == static_cast<float>(4 * i * i));
  }
}

}  // namespace
TEST_CASE("recorded steps: one_hot, tril and triu make their numbers on the GPU") {
  constexpr std::int64_t classes = 600;
  const Tensor labels = Tensor::zeros({3}, DType::i64, test_device());
  const Tensor square = Tensor::ones({classes, 257}, DType::f32, test_device());
  Tensor hot, low, high;
  int replays = 0;
  StepGraph step(
      [&] {
        hot = one_hot(labels, classes);
        low = tril(square, 3);
        high = triu(square, -1);
      },
      test_device());
  for (std::int64_t i = 0; i < 5; ++i) {
    const Tensor here = Tensor::of<std::int64_t>({3}, {i, 255 + i, 599 - i});
    labels.copy_from(here.to(test_device()));
    replays += step();
    CHECK(hot.to_vector<std::int64_t>() == one_hot(here, classes).to_vector<std::int64_t>());
  }
  const Tensor ones = Tensor::ones({classes, 257});
  CHECK(low.to_vector<float>() == tril(ones, 3).to_vector<float>());
  CHECK(high.to_vector<float>() == triu(ones, -1).to_vector<float>());
  CHECK(replays >= 3);
}

}  // namespace lockstep::test::made_in_step
