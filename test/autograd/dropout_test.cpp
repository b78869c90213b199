// Dropout: which elements, reproducibly, and the same ones backwards.

#include <doctest/doctest.h>

#include <algorithm>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/generator.h"
#include "support/device.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("dropout scales what it keeps, and its gradient keeps the same") {
  manual_seed(8);
  const Tensor x = Tensor::full({400}, 3, DType::f32, test_device());
  Tape tape;
  const Tensor watched = tape.watch(x);
  const Tensor y = dropout(watched, 0.25);
  tape.backward(sum(y));
  const auto values = y.to_vector<float>(), gradient = tape.gradient(watched).to_vector<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK((values[i] == 0 || values[i] == 4));
    CHECK(gradient[i] == values[i] / 3);
  }
  const auto kept = std::count(values.begin(), values.end(), 4.0f);
  CHECK(kept > 265);  // of 300 expected, with a standard deviation of 8.7
  CHECK(kept < 335);
}

TEST_CASE("dropout draws anew each time, and the same again after manual_seed") {
  const Tensor x = Tensor::full({64}, 1, DType::f32, test_device());
  manual_seed(8);
  const auto first = dropout(x, 0.5).to_vector<float>(),
             second = dropout(x, 0.5).to_vector<float>();
  CHECK(first != second);
  manual_seed(8);
  CHECK(dropout(x, 0.5).to_vector<float>() == first);
  CHECK(dropout(x, 0.5).to_vector<float>() == second);
  manual_seed(9);
  CHECK(dropout(x, 0.5).to_vector<float>() != first);
}

TEST_CASE("dropout with p = 0 or of nothing draws nothing; p below 0 or from 1 on is refused") {
  manual_seed(8);
  const Tensor x = Tensor::full({4}, 2, DType::f32, test_device());
  CHECK(dropout(x, 0).to_vector<float>() == x.to_vector<float>());
  CHECK(dropout(x.slice(0, 0), 0.5).numel() == 0);
  CHECK(default_philox().state().offset == 0);
  CHECK_THROWS_WITH_AS(dropout(x, 1), "[dropout] p must be in [0, 1), got 1", UsageError);
  CHECK_THROWS_AS(dropout(x, -0.1), UsageError);
}
