// Changes in place of what a tape has recorded: gradients would not know of them.

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/generator.h"

using namespace lockstep;

namespace {

struct Write {
  std::string call;
  std::function<void(const Tensor&)> to;
};

std::vector<Write> writes() {
  return {{"set", [](const Tensor& x) { x.set({1}, 7); }},
          {"fill", [](const Tensor& x) { x.fill(7); }},
          {"fill_zero", [](const Tensor& x) { x.fill_zero(); }},
          {"copy_from",
           [](const Tensor& x) {
             x.copy_from(Tensor::from({7.0, 8.0}));
           }},
          {"uniform", [](const Tensor& x) { default_generator().uniform(x); }},
          {"normal", [](const Tensor& x) { default_generator().normal(x); }},
          {"add", [](const Tensor& x) { x += 1.0; }},
          {"sub",
           [](const Tensor& x) {
             x -= Tensor::from({1.0, 2.0});
           }},
          {"mul", [](const Tensor& x) { x *= 2.0; }},
          {"div", [](const Tensor& x) { x /= 2.0; }}};
}

std::vector<double> values_of(const Tensor& x) { return x.to_vector<double>(); }

}  // namespace

TEST_CASE("writes: what is recorded, watched or a parameter's operand is not changed in place") {
  const Parameter w(Tensor::from({2.0, 3.0}), "w");
  for (const Write& write : writes()) {
    CAPTURE(write.call);
    Tape tape;
    const Tensor watched = tape.watch(Tensor::from({4.0, 5.0})), made = w * 2.0;
    for (const Tensor& x : {made, watched, Tensor(w)}) {
      const std::vector<double> before = values_of(x);
      CHECK_THROWS_WITH_AS(write.to(x), doctest::Contains(("[" + write.call + "]").c_str()),
                           StateError);
      CHECK(values_of(x) == before);
      CHECK(x.span<double>()[1] == x.item({1}));  // reading is free
    }
    const Tensor loss = sum(made * watched * w);
    tape.backward(loss);
    CHECK(values_of(w.gradient()) == std::vector<double>{2 * 2 * 2 * 4.0, 2 * 2 * 3 * 5.0});
    // Constants, values, gradients and what is cut off can be written to.
    for (const Tensor& x : {Tensor::from({1.0, 2.0}), w.value(), w.gradient(),
                            tape.gradient(watched), made.detach()}) {
      const std::vector<double> before = values_of(x);
      CHECK_NOTHROW(write.to(x));
      CHECK(values_of(x) != before);
    }
    w.value().copy_from(Tensor::from({2.0, 3.0}));
    w.zero_grad();
  }
}

TEST_CASE("writes: the message says what to do instead") {
  const Parameter w(Tensor::from({2.0, 3.0}), "w");
  Tape tape;
  const Tensor y = w * 2.0;
  CHECK_THROWS_WITH_AS(
      y.set({0}, 1),
      "[set] (2,) is recorded on a tape, and gradients would not know of the change: take where(), "
      "which makes another tensor",
      StateError);
  CHECK_THROWS_WITH_AS(Tensor(w).fill(1),
                       "[fill] (2,) is the operand of a parameter, and gradients would not know of "
                       "the change: write to its value()",
                       StateError);
  const Tensor index = tape.watch(Tensor::from({1.0})).detach();
  CHECK_NOTHROW(index.fill(3));
}

TEST_CASE("writes: a copy of what is recorded would have no gradient") {
  const Parameter w(Tensor::from({2.0, 3.0}), "w");
  const Tensor to = Tensor::zeros({2}, DType::f64);
  Tape tape;
  const Tensor y = w * 2.0;
  CHECK_THROWS_WITH_AS(to.copy_from(y),
                       "[copy_from] the source (2,) is recorded on a tape, and a copy has no "
                       "gradient: take the source in its place, or its detach() to copy the "
                       "elements",
                       StateError);
  CHECK_THROWS_WITH_AS(to.copy_from(w), doctest::Contains("or its value() to copy"), StateError);
  to.copy_from(y.detach());
  CHECK(values_of(to) == std::vector<double>{4, 6});
}

TEST_CASE("writes: numbers drawn into what forward has saved are noticed in backward") {
  const Parameter w(Tensor::from({2.0, 3.0}), "w");
  const Tensor noise = Tensor::from({1.0, 2.0}), labels = Tensor::from({0, 1});
  const auto after = [&](const std::function<void()>& draw) {
    Tape tape;
    const Tensor loss = sum(w * noise) + sum(gather(w, 0, labels));
    draw();
    CHECK_THROWS_WITH_AS(tape.backward(loss), doctest::Contains("was changed in place"),
                         StateError);
  };
  after([&] { default_generator().uniform(noise); });
  after([&] { default_generator().normal(noise); });
  after([&] { default_generator().randint(0, 2, labels); });
}

// A gradient of before may be an operand: its memory is that of the next one.
TEST_CASE("writes: a backward that overwrites a gradient is noticed where that was saved") {
  const Parameter w(Tensor::from({1.0, 2.0}), "w");
  for (const bool zeroed : {false, true})
    for (const bool overwritten : {false, true}) {
      w.zero_grad();
      Tape first;
      first.backward(sum(w * Tensor::from({10.0, 20.0})));
      const Tensor g = w.gradient().detach();
      if (zeroed) w.zero_grad();
      Tape tape;
      const Tensor early = overwritten ? sum(w * g) : sum(square(w));
      const Tensor loss = early + (overwritten ? sum(square(w)) : sum(w * g));
      if (overwritten) {  // backward comes to the square first
        CHECK_THROWS_WITH_AS(tape.backward(loss), doctest::Contains("was changed in place"),
                             StateError);
      } else {
        tape.backward(loss);
        CHECK(values_of(w.gradient()) ==
              std::vector<double>{zeroed ? 12.0 : 22, zeroed ? 24.0 : 44});
      }
    }
  w.zero_grad();
  Tape first;
  first.backward(sum(w * Tensor::from({10.0, 20.0})));
  const Tensor g = w.gradient().detach().clone();
  w.zero_grad();
  Tape tape;
  tape.backward(sum(square(w)) + sum(w * g));
  CHECK(values_of(w.gradient()) == std::vector<double>{12, 24});
}
