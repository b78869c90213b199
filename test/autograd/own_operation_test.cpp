// Operations of one's own: what their backward must not do.

#include <doctest/doctest.h>

#include "lockstep/lockstep.h"

using namespace lockstep;

TEST_CASE("a backward that forgets an operand is found out") {
  const Parameter w = Parameter(Tensor::ones({1}), "w");
  Tape tape;
  const Tensor y = w;
  const Tensor bad = record("lazy", y.detach().clone(), {&y}, [](Gradients&) {});
  CHECK_THROWS_WITH_AS(tape.backward(sum(bad)), doctest::Contains("[lazy]"), StateError);
}

TEST_CASE("a backward that passes what is not an operand's gradient is refused") {
  const Parameter w(Tensor::zeros({2, 3}, DType::f64), "w");
  const auto refusal = [&](int operand, const Tensor& gradient) -> std::string {
    Tape tape;
    const Tensor x = scale(w, 2);  // another recorded value, then the parameter itself
    for (const Tensor& input : {x, Tensor(w)}) {
      const Tensor y = record("own", input.detach().clone(), {&input},
                              [&](Gradients& g) { g.pass(operand, gradient); });
      try {
        tape.backward(sum(y));
      } catch (const Error& error) {
        if (input.gradient_ref().tape == GradientRef::parameter) return error.what();
        continue;
      }
      return "nothing";
    }
    return "nothing";
  };
  CHECK(refusal(0, Tensor::zeros({2, 3}, DType::f64)) == "nothing");
  CHECK(refusal(0, Tensor::zeros({2, 3})) ==
        "[own] backward passes f32 (2, 3) to operand 0, which is f64 (2, 3)");
  CHECK(refusal(0, Tensor::zeros({2}, DType::f64)) ==
        "[own] backward passes f64 (2,) to operand 0, which is f64 (2, 3)");
  for (const int operand : {1, -1})
    CHECK(refusal(operand, Tensor::zeros({2, 3}, DType::f64)) ==
          fmt::format("[own] backward names operand {}, and there are 1", operand));
}
