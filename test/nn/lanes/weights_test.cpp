// What a batch with lanes counts for, and which batches may make one step.

#include <doctest/doctest.h>

#include <optional>
#include <string>

#include "lockstep/lockstep.h"
#include "support/text.h"

using namespace lockstep;

namespace lane_weights {
namespace {

constexpr int lanes = 8;
constexpr std::int64_t batch_size = 44;

data::TensorDataset make_data() {
  manual_seed(3);
  const Tensor y = Tensor::empty({100}, DType::i64);
  for (std::int64_t i = 0; i < 100; ++i) y.data<std::int64_t>()[i] = (i * i + i / 3) % 5;
  return data::TensorDataset({{"x", Tensor::randn({100, 12})}, {"y", y}});
}
nn::Sequential mlp() { return nn::Sequential{nn::Linear(12, 16), nn::ReLU(), nn::Linear(16, 5)}; }
Tensor classified(nn::Sequential& model, const data::Batch& batch) {
  return nn::cross_entropy(model(batch.x), batch.y);
}

}  // namespace

TEST_SUITE_BEGIN("not-late");  // about ranks

TEST_CASE("lanes: weights other than the number of samples, and a tape that does not know them") {
  const data::Loader loader(make_data(), {.batch = batch_size, .lanes = lanes});
  nn::Sequential model = mlp();
  (void)model.parameters();
  const data::Batch batch = loader.batch(0);
  const auto message = [&](bool known, std::optional<Weight> weight) {
    LaneScope scope;
    if (known) scope.set(batch.lanes);
    try {
      Tape tape;
      tape.backward(classified(model, batch), weight);
      return std::string();
    } catch (const StateError& error) {
      return std::string(error.what());
    }
  };
  CHECK(message(true, batch.weight) == "");
  for (const Parameter& parameter : model.parameters()) parameter.zero_grad();
  CHECK(test::contains(message(true, {}), "44 of 44 in 8 lanes; got none"));
  CHECK(test::contains(message(true, Weight(3, 44)), "got 3 of 44"));
  Weight of_four = batch.weight;
  of_four.lanes = 4;
  CHECK(test::contains(message(true, of_four), "got 44 of 44 in 4 lanes"));
  CHECK(test::contains(message(false, batch.weight), "has 8 lanes, which the tape does not know"));
}

TEST_CASE("lanes: micro-batches of one step have the same lanes") {
  nn::Sequential model = mlp();
  (void)model.parameters();
  const auto add = [&](int count) {
    const data::Batch batch = data::Loader(make_data(), {.batch = 16, .lanes = count}).batch(0);
    const LaneScope scope(batch.lanes);
    Tape tape;
    tape.backward(classified(model, batch), batch.weight, {.sync = false});
  };
  add(4);
  add(4);
  CHECK_THROWS_WITH_AS(
      add(8), doctest::Contains("holds 4 lanes of this rank, and this batch has 8"), StateError);
}

}  // namespace lane_weights

TEST_SUITE_END();
