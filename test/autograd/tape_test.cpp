// The tape: what is recorded, when a parameter is ready, what is an error.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/memory.h"
#include "support/fake_reducer.h"

using namespace lockstep;
using test::FakeReducer;

namespace {

/// Writes down what it is told, with the number of contributions each parameter expects.
struct Recorder : GradientObserver {
  std::vector<std::string> events;
  std::vector<Parameter> watched;

  void backward_begins(const Contribution&) override {
    std::string counts = "begin";
    for (const Parameter& p : watched) counts += fmt::format(" {}:{}", p.name(), p.uses_left());
    events.push_back(counts);
  }
  void gradient_ready(const Parameter& p) override { events.push_back("ready " + p.name()); }
  void backward_ends() override { events.push_back("end"); }
  void backward_failed() noexcept override { events.push_back("failed"); }
};

Parameter parameter(const std::string& name, std::initializer_list<float> values) {
  return Parameter(Tensor::of<float>({static_cast<std::int64_t>(values.size())}, values), name);
}

std::vector<float> gradient_of(const Parameter& p) { return p.gradient().to_vector<float>(); }

}  // namespace

TEST_CASE("gradients add up over uses and backwards until zero_grad") {
  const Parameter w = parameter("w", {2, 3});
  for (int round = 1; round <= 2; ++round) {
    Tape tape;
    tape.backward(sum(w * w) + sum(w));  // 2w + 1
    CHECK(gradient_of(w) == std::vector<float>{round * 5.f, round * 7.f});
  }
  w.zero_grad();
  CHECK_FALSE(w.gradient().defined());
  Tape tape;
  tape.backward(sum(w));
  CHECK(gradient_of(w) == std::vector<float>{1, 1});  // overwritten, not added
}

TEST_CASE("a parameter is ready at its last contribution, while the loop goes on") {
  const Parameter a = parameter("a", {1}), b = parameter("b", {1}), c = parameter("c", {1});
  const Parameter unused = parameter("unused", {1});
  Recorder recorder;
  recorder.watched = {a, b, c, unused};
  std::vector<Observation> observations;
  for (const Parameter& p : recorder.watched) observations.push_back(p.observe(recorder));

  Tape tape;
  Tensor x = mul(a, b);  // b: used here and below, so it is ready only here
  x = mul(x, c);
  x = mul(x, b);
  tape.backward(sum(x));
  CHECK(recorder.events == std::vector<std::string>{"begin a:1 b:2 c:1 unused:0", "ready c",
                                                    "ready a", "ready b", "end"});
  CHECK(a.uses_left() == 0);

  observations.clear();
  Tape silent;
  silent.backward(sum(mul(a, b)));
  CHECK(recorder.events.size() == 5);  // nobody is told after the handles are gone
}

TEST_CASE("the weight seeds backward, and observers that sum ranks give the default") {
  const Parameter w = parameter("w", {1});
  const auto run = [&](std::optional<Weight> weight) {
    w.zero_grad();
    Tape tape;
    tape.backward(sum(w), weight);
    return gradient_of(w)[0];
  };
  CHECK(run({}) == 1);
  CHECK(run(Weight{3, 12}) == 0.25f);
  FakeReducer reducer(4);
  const Observation observation = w.observe(reducer);
  CHECK(w.managed());
  CHECK(run({}) == 0.25f);
  CHECK(run(Weight{1, 2}) == 0.5f);
  CHECK_THROWS_AS(run(Weight{3, 2}), StateError);
  CHECK_THROWS_AS(run(Weight{-1, 2}), StateError);
  const double infinity = std::numeric_limits<double>::infinity();
  CHECK_THROWS_AS(run(Weight{infinity, infinity}), StateError);
}

TEST_CASE("who only watches is told after the reducers, whoever was registered first") {
  struct Summing : FakeReducer {
    explicit Summing(std::vector<std::string>& told) : FakeReducer(2), events(told) {}
    void backward_begins(const Contribution&) override { events.push_back("reducer begins"); }
    void backward_ends() override { events.push_back("reducer ends"); }
    std::vector<std::string>& events;
  };
  struct Watching : GradientObserver {
    explicit Watching(std::vector<std::string>& told) : events(told) {}
    void backward_begins(const Contribution&) override { events.push_back("watcher begins"); }
    void gradient_ready(const Parameter&) override {}
    void backward_ends() override { events.push_back("watcher ends"); }
    std::vector<std::string>& events;
  };
  const std::vector<std::string> expected = {"reducer begins", "watcher begins", "reducer ends",
                                             "watcher ends"};
  for (const bool watcher_first : {true, false}) {
    const Parameter w = parameter("w", {1});
    std::vector<std::string> events;
    Summing reducer(events);
    Watching watcher(events);
    GradientObserver &first = watcher_first ? static_cast<GradientObserver&>(watcher) : reducer,
                     &second = watcher_first ? static_cast<GradientObserver&>(reducer) : watcher;
    const Observation one = w.observe(first), two = w.observe(second);
    Tape tape;
    tape.backward(sum(w));
    CHECK(events == expected);
  }
}

TEST_CASE("a total to be summed, and windows, are the reducer's to divide") {
  const Parameter w = parameter("w", {1});
  const auto run = [&](std::optional<Weight> weight, bool sync) {
    w.zero_grad();
    Tape tape;
    tape.backward(sum(w), weight, {.sync = sync});
    return gradient_of(w)[0];
  };
  CHECK(run(Weight{7}, true) == 1);  // alone: the mean of itself
  CHECK(run(Weight{3, 12}, false) == 0.25f);
  FakeReducer reducer(2);
  const Observation observation = w.observe(reducer);
  CHECK(run(Weight{7}, true) == 7);
  CHECK(run(Weight{3, 12}, true) == 0.25f);
  reducer.window = true;
  CHECK(run(Weight{3, 12}, true) == 3);
  CHECK(run({}, false) == 1);
}

TEST_CASE("a mean over ranks is over those of the larger of two reducers, whichever comes first") {
  for (const int first : {2, 4}) {
    const Parameter a = parameter("a", {1}), b = parameter("b", {1});
    FakeReducer one(first), two(6 - first);
    const Observation of_a = a.observe(one), of_b = b.observe(two);
    Tape tape;
    tape.backward(sum(a + b));
    for (const Parameter& p : {a, b}) CHECK(gradient_of(p)[0] == 0.25f);
  }
}

TEST_CASE("a parameter that was forgotten when the reducer was made is named, unless kept local") {
  const Parameter known = parameter("known", {1}), stray = parameter("stray", {2});
  FakeReducer reducer(2);
  const Observation observation = known.observe(reducer);
  {
    Tape tape;
    CHECK_THROWS_WITH_AS(
        tape.backward(sum(known * stray)),
        doctest::Contains("'known', which is under DistributedDataParallel, and 'stray'"),
        StateError);
  }
  stray.keep_local();
  Tape tape;
  tape.backward(sum(known * stray));
  CHECK(gradient_of(known)[0] == 1);  // 2, times a half
}

TEST_CASE("a rank of weight 0 contributes exact zeros, even from NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Parameter w = parameter("w", {nan});
  {
    Tape tape;
    tape.backward(sum(w * w), Weight{0, 5});
  }
  CHECK(gradient_of(w) == std::vector<float>{0});
  w.value().fill(2);
  {
    Tape tape;
    tape.backward(sum(w * w), Weight{1, 1});
  }
  w.value().fill(nan);
  {
    Tape tape;
    tape.backward(sum(w * w), Weight{0, 0});
  }
  CHECK(gradient_of(w) == std::vector<float>{4});  // what was there stays
}

TEST_CASE("no tape, or nothing that wants a gradient: nothing is recorded") {
  const Parameter w = parameter("w", {1});
  CHECK(sum(w).gradient_ref().tape == GradientRef::nothing);
  Tape tape;
  CHECK(exp(w.value()).gradient_ref().tape == GradientRef::nothing);
  w.set_requires_grad(false);
  CHECK_THROWS_WITH_AS(tape.backward(sum(w)), doctest::Contains("not recorded"), StateError);
}

TEST_CASE("errors: backward twice, another tape's tensor, a loss of several elements") {
  const Parameter w = parameter("w", {1, 2});
  Tensor kept;
  {
    Tape tape;
    const Tensor y = exp(w);
    kept = sum(y);
    tape.backward(kept);
    CHECK_THROWS_WITH_AS(tape.backward(kept), doctest::Contains("already run backward"),
                         StateError);
    CHECK_THROWS_WITH_AS(tape.backward(sum(y)), doctest::Contains("already run backward"),
                         StateError);
    CHECK_THROWS_WITH_AS(tape.backward(exp(w)), doctest::Contains("(2,)"), ShapeError);
  }
  CHECK(kept.item() == doctest::Approx(std::exp(1.0) + std::exp(2.0)));
  CHECK(exp(kept).defined());  // without a tape it is a tensor like any other
  Tape tape;
  CHECK_THROWS_WITH_AS(add(kept, w), doctest::Contains("[add]"), StateError);
  CHECK_THROWS_AS(tape.backward(kept), StateError);
  CHECK_NOTHROW(add(kept.detach(), w));
  CHECK_THROWS_AS(sum(w).view({1}), StateError);  // would cut the gradient off in silence
}

TEST_CASE("retain keeps what is needed for another backward") {
  const Parameter w = parameter("w", {3});
  Tape tape;
  const Tensor loss = sum(w * w);
  tape.backward(loss, {}, {.retain = true});
  tape.backward(loss);
  CHECK(gradient_of(w) == std::vector<float>{12});
  CHECK_THROWS_AS(tape.backward(loss), StateError);
}

TEST_CASE("several losses on one tape that share nothing can run backward one by one") {
  const Parameter a = parameter("a", {1}), b = parameter("b", {2});
  Tape tape;
  const Tensor first = sum(a * a), second = sum(b * b);
  tape.backward(first);
  CHECK_FALSE(b.gradient().defined());
  tape.backward(second);
  CHECK(gradient_of(a) == std::vector<float>{2});
  CHECK(gradient_of(b) == std::vector<float>{4});
}

TEST_CASE("a gradient passed to two operands is not shared when one of them goes on adding") {
  Tape tape;
  const Tensor x = tape.watch(Tensor::of<float>({2}, {1, 2}));
  const Tensor y = tape.watch(Tensor::of<float>({2}, {3, 4}));
  // add passes the same gradient to x and y; x gets another contribution afterwards.
  const Tensor twice = x * x;
  tape.backward(sum(twice) + sum(x + y));
  CHECK(tape.gradient(x).to_vector<float>() == std::vector<float>{3, 5});
  CHECK(tape.gradient(y).to_vector<float>() == std::vector<float>{1, 1});
}

TEST_CASE("tapes nest: the innermost records") {
  const Parameter w = parameter("w", {2});
  Tape outer;
  const Tensor y = sum(w * w);
  {
    Tape inner;
    CHECK(Tape::current() == &inner);
    inner.backward(sum(w));
    CHECK_THROWS_AS(inner.backward(y), StateError);
  }
  CHECK(Tape::current() == &outer);
  outer.backward(y);
  CHECK(gradient_of(w) == std::vector<float>{5});
}

TEST_CASE("an exception in an operation leaves no counts behind and tells the observers") {
  const Parameter w = parameter("w", {1});
  Recorder recorder;
  const Observation observation = w.observe(recorder);
  {
    Tape tape;
    const Tensor y = w;
    const Tensor bad = record("bad", y.detach().clone(), {&y},
                              [](Gradients&) { fail<StateError>("[bad] on purpose"); });
    CHECK_THROWS_WITH_AS(tape.backward(sum(bad + w)), "[bad] on purpose", StateError);
  }
  CHECK(w.uses_left() == 0);
  CHECK(recorder.events.back() == "failed");
}

TEST_CASE("a backward that is refused tells its observers, and leaves gradients alone") {
  const Parameter w = parameter("w", {1});
  Recorder recorder;
  const Observation observation = w.observe(recorder);
  Tape tape;
  const Tensor loss = sum(w * w);
  CHECK_THROWS_AS(tape.backward(loss, Weight{2, 1}), StateError);
  CHECK(recorder.events == std::vector<std::string>{"failed"});  // others may be waiting
  tape.backward(loss);
  w.set_gradient_state(GradientState::synchronized);
  CHECK_THROWS_AS(tape.backward(loss), StateError);
  CHECK(w.gradient_state() == GradientState::synchronized);
  CHECK(recorder.events == std::vector<std::string>{"failed", "begin", "ready w", "end"});
  CHECK(w.uses_left() == 0);
}

TEST_CASE("undefined operands, a parameter as loss") {
  CHECK_THROWS_AS(relu(Tensor()), StateError);
  CHECK_THROWS_AS(add(Tensor(), Tensor::zeros({1})), Error);
  CHECK_THROWS_AS(cross_entropy(Tensor(), Tensor()), Error);
  const Parameter w = parameter("w", {1});
  Tape tape;
  const Tensor x = w;
  CHECK_THROWS_WITH_AS(tape.backward(x), doctest::Contains("not recorded"), StateError);
}

TEST_CASE("an undefined parameter is an undefined tensor, and has nothing else") {
  const Parameter none;
  CHECK_FALSE(none.defined());
  CHECK(none == Parameter());
  CHECK(none.id() == nullptr);
  CHECK_FALSE(Tensor(none).defined());
  CHECK_THROWS_WITH_AS(none.name(), "[name] of an undefined parameter", StateError);
  CHECK_THROWS_WITH_AS(none.value(), "[value] of an undefined parameter", StateError);
  CHECK_THROWS_WITH_AS(none.gradient(), "[gradient] of an undefined parameter", StateError);
  CHECK_THROWS_WITH_AS(none.zero_grad(), "[set_gradient_state] of an undefined parameter",
                       StateError);
  CHECK_THROWS_WITH_AS(none.move_to({}), "[move_to] of an undefined parameter", StateError);
  CHECK_THROWS_WITH_AS(none.place_gradient({}), "[place_gradient] of an undefined parameter",
                       StateError);
  CHECK_THROWS_AS(none.managed(), StateError);
  CHECK_THROWS_WITH_AS(Parameter(Tensor(), "w"), "[parameter] 'w', of an undefined tensor",
                       StateError);
}

TEST_CASE("broadcast_to refuses what does not broadcast to the shape itself") {
  CHECK_THROWS_AS(broadcast_to(Tensor::zeros({2}), {2, 3}), ShapeError);
  CHECK_THROWS_AS(broadcast_to(Tensor::zeros({2, 3}), {3}), ShapeError);
  CHECK_THROWS_AS(broadcast_to(Tensor(), {3}), StateError);
}

TEST_CASE("gradients of watched tensors share nothing with one another") {
  Tape tape;
  const Tensor x = tape.watch(Tensor::zeros({2})), y = tape.watch(Tensor::zeros({2}));
  tape.backward(sum(x + y));
  tape.gradient(x).fill(7);
  CHECK(tape.gradient(y).to_vector<float>() == std::vector<float>{1, 1});
}

TEST_CASE("saved tensors and gradients are freed as the loop passes them") {
  const std::int64_t n = 1 << 16;
  const Parameter w(Tensor::zeros({n}), "w");
  const std::size_t one = static_cast<std::size_t>(n) * sizeof(float);
  Tape tape;
  Tensor x = w;
  for (int i = 0; i < 16; ++i) x = tanh(x);
  Tensor loss = sum(x);
  x = {};
  const std::size_t before = memory::statistics().live_bytes;
  tape.backward(loss);
  const std::size_t after = memory::statistics().live_bytes;
  CHECK(before > 15 * one);          // 16 saved outputs
  CHECK(after < before - 14 * one);  // all freed; the gradient of w is new
}

TEST_CASE("gradients are written straight into memory placed by others") {
  const Parameter w = parameter("w", {1, 2});
  const Tensor bucket = Tensor::full({32}, std::numeric_limits<double>::quiet_NaN());
  w.place_gradient(bucket.slice(16, 18));
  Tape tape;
  tape.backward(sum(w * w));
  CHECK(bucket.data<float>()[16] == 2);
  CHECK(bucket.data<float>()[17] == 4);
  CHECK(w.gradient().raw() == bucket.raw() + 64);
  CHECK_THROWS_AS(w.place_gradient(bucket.slice(0, 3)), ShapeError);
  w.place_gradient(bucket.slice(0, 2));  // what the old place held is lost, not added to this one
  CHECK(w.gradient_state() == GradientState::nothing);
}
