// Which batches are replayed, and which are not (nn/recorded_steps.h).

#include "lockstep/nn/recorded_steps.h"

#include <doctest/doctest.h>

#include "lockstep/autograd/ops.h"
#include "support/device.h"

using namespace lockstep;
using test::here;
using test::on_cpu;

namespace recorded_batches {

/// Rows whose elements are all `value`.
data::Batch batch_of(std::int64_t rows, double value, Weight weight) {
  data::Batch batch;
  batch.x = here(Tensor::full({rows, 3}, value));
  batch.fields.set("x", batch.x);
  batch.weight = weight;
  return batch;
}

struct Counted {
  int calls = 0;
  nn::RecordedSteps step{[this](const data::Batch& batch) {
    ++calls;
    return sum(batch.x).view({1});
  }};
  double operator()(std::int64_t rows, double value, Weight weight) {
    return step(batch_of(rows, value, weight)).to_vector<float>()[0];
  }
};

}  // namespace recorded_batches

using namespace recorded_batches;

TEST_CASE("recorded steps: batches of the first one's size are replayed, others are not") {
  Counted counted;
  CHECK(counted(4, 1, {4, 8}) == 12);
  CHECK(counted(4, 2, {4, 8}) == 24);  // recorded
  CHECK(counted(4, 3, {4, 8}) == 36);
  CHECK(counted(4, 4, {4, 8}) == 48);
  CHECK(counted.calls == (on_cpu() ? 4 : 2));
  CHECK(counted(2, 5, {2, 4}) == 30);  // the end of an epoch
  CHECK(counted.calls == (on_cpu() ? 5 : 3));
  CHECK(counted(4, 6, {4, 8}) == 72);
  CHECK(counted.calls == (on_cpu() ? 6 : 3));
  CHECK(counted.step.replays() == (on_cpu() ? 0 : 3));
  CHECK(counted.step.recordings() == (on_cpu() ? 0 : 1));
}

TEST_CASE("recorded steps: without a known total nothing is recorded") {
  Counted counted;
  for (int i = 1; i < 5; ++i) CHECK(counted(4, i, {4}) == 12 * i);
  CHECK(counted.calls == 4);
  CHECK(counted.step.recordings() == 0);
}

TEST_CASE("recorded steps: ranks that replay must not be joined by another batch") {
  if (on_cpu()) return;
  Counted counted;
  for (int i = 1; i < 4; ++i) CHECK(counted(4, i, {4, 8}) == 12 * i);
  CHECK_THROWS_WITH_AS(counted(3, 1, {3, 8}),
                       doctest::Contains("a batch that counts 3 of 8, where the recorded step's "
                                         "counts 4"),
                       StateError);
  CHECK_THROWS_WITH_AS(counted(5, 1, {4, 8}),
                       doctest::Contains("'x' is (5, 3) f32, in the recorded step 'x' (4, 3) f32"),
                       StateError);
  CHECK(counted(4, 7, {4, 8}) == 84);
}

TEST_CASE("recorded steps: batches stay as they are, and x and y count that are no fields") {
  std::vector<data::Batch> kept;
  for (int i = 0; i < 5; ++i) {
    kept.push_back(batch_of(4, i, {4, 8}));
    kept.back().x = here(Tensor::full({4, 3}, 10 * i));  // augmented: no field any more
    kept.back().y = here(Tensor::full({4, 1}, 100 * i));
  }
  nn::RecordedSteps step([](const data::Batch& batch) {
    return (sum(batch.x) + sum(batch.y) + sum(batch["x"])).view({1});
  });
  for (int round = 0; round < 2; ++round)
    for (int i = 0; i < 5; ++i)
      CHECK(step(kept[static_cast<std::size_t>(i)]).to_vector<float>()[0] == 532 * i);
  CHECK(step.replays() == (on_cpu() ? 0 : 8));
  data::Batch bare;  // no field at all
  nn::RecordedSteps of_bare([](const data::Batch& batch) { return sum(batch.x).view({1}); });
  for (int i = 1; i < 5; ++i) {
    bare.x = here(Tensor::full({2}, i));
    bare.weight = {2, 2};
    CHECK(of_bare(bare).to_vector<float>()[0] == 2 * i);
  }
  CHECK(of_bare.replays() == (on_cpu() ? 0 : 2));
}
