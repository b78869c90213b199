// What a LaneRecord holds of a step: beside what each lane gives when it is computed alone.

#include "lockstep/autograd/lanes/lane_record.h"

#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/generator.h"
#include "lockstep/core/lanes.h"

using namespace lockstep;

namespace {

struct RecordedModel {
  Parameter w, b, scale, shift;
  RecordedModel()
      : w(Tensor::randn({4, 3}), "w"),
        b(Tensor::randn({4}), "b"),
        scale(Tensor::randn({4}), "scale"),
        shift(Tensor::randn({4}), "shift") {}
  std::vector<Parameter> parameters() const { return {w, b, scale, shift}; }
};

// |a - b| of f32 numbers that were added in another order.
void check_close(const Tensor& a, const Tensor& b) {
  const auto x = cast(a, DType::f64).to_vector<double>();
  const auto y = cast(b, DType::f64).to_vector<double>();
  REQUIRE(x.size() == y.size());
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i] == doctest::Approx(y[i]).epsilon(1e-5));
}

constexpr std::int64_t all_rows = 10;  // in lanes of 3, 3, 3 and 1

}  // namespace

TEST_CASE("lane record: the gradients of each lane are those of its rows alone") {
  manual_seed(2);
  const RecordedModel model;
  const Tensor x = Tensor::randn({all_rows, 3}), y = Tensor::randn({all_rows, 4});
  const auto loss = [&](std::int64_t begin, std::int64_t end) {
    return mse(linear(of_samples(x.slice(begin, end)), model.w, model.b),
               of_samples(y.slice(begin, end)));
  };
  LaneRecord record({model.w, model.b, model.scale});
  {
    const LaneScope lanes(std::make_shared<const Lanes>(all_rows, 4, Shard{}));
    const LaneRecord::Scope scope(record);
    Tape tape;
    tape.backward(loss(0, all_rows), Weight{all_rows, all_rows});
    record.take_gradients();
  }
  REQUIRE(record.parts().size() == 3);
  CHECK(record.parts()[1].label == "'b'");
  CHECK(record.parts()[0].lanes.shape() == Shape{4, 4, 3});
  CHECK(!record.parts()[2].lanes.defined());  // the loss does not reach it
  // (What follows also shows that a tape without lanes forgets those of a tape before it.)
  const Tensor sum = model.w.gradient().clone();
  Tensor total = Tensor::zeros({4, 3});
  for (std::int64_t k = 0; k < 4; ++k) {
    const std::int64_t begin = 3 * k, end = std::min(begin + 3, all_rows);
    for (const Parameter& parameter : model.parameters()) parameter.zero_grad();
    Tape tape;
    tape.backward(loss(begin, end), Weight{end - begin, all_rows});
    check_close(record.parts()[0].lanes.slice(k, k + 1).view({4, 3}), model.w.gradient());
    check_close(record.parts()[1].lanes.slice(k, k + 1).view({4}), model.b.gradient());
    total = total + model.w.gradient();
  }
  check_close(sum, total.detach());
}

TEST_CASE("lane record: what each lane gives to batch_norm's statistics, and to their gradient") {
  manual_seed(3);
  const RecordedModel model;
  const Tensor x = of_samples(Tensor::randn({all_rows, 3}));
  const Tensor y = of_samples(Tensor::randn({all_rows, 4}));
  Tensor h, dh;
  LaneRecord record(model.parameters());
  {
    const LaneScope lanes(std::make_shared<const Lanes>(all_rows, 4, Shard{}));
    const LaneRecord::Scope scope(record);
    Tape tape;
    const Tensor linear_y = linear(x, model.w, model.b);
    h = linear_y.detach();
    const Tensor normal = batch_norm(linear_y, model.scale, model.shift);
    dh = scale(normal.detach() - y, 2.0 / (4 * all_rows));  // of mse
    tape.backward(mse(normal, y), Weight{all_rows, all_rows});
    record.take_gradients();
  }
  REQUIRE(record.parts().size() == 6);
  CHECK(record.parts()[4].label == "sum 1 over samples, of batch_norm");
  const auto given = record.parts()[4].lanes.to_vector<double>();     // (4, 2 * 4): mean, m2
  const auto gradient = record.parts()[5].lanes.to_vector<double>();  // sums of dh, of dh * xhat
  const auto of = [](const Tensor& rows, std::int64_t i, std::int64_t c) {
    return static_cast<double>(rows.data<float>()[i * 4 + c]);
  };
  for (std::int64_t c = 0; c < 4; ++c)
    for (std::int64_t k = 0; k < 4; ++k) {
      const std::int64_t begin = 3 * k, end = std::min(begin + 3, all_rows);
      double mean = 0, m2 = 0, sum = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        mean += of(h, i, c) / static_cast<double>(end - begin);
        sum += of(dh, i, c);
      }
      for (std::int64_t i = begin; i < end; ++i) m2 += std::pow(of(h, i, c) - mean, 2);
      const auto at = static_cast<std::size_t>(k * 8 + c);
      CHECK(given[at] == doctest::Approx(mean).epsilon(1e-9));
      CHECK(given[at + 4] == doctest::Approx(m2).epsilon(1e-9));
      CHECK(gradient[at] == doctest::Approx(sum).epsilon(1e-5));
    }
}

TEST_CASE("lane record: a second run of a lane has its bits, and leaves gradients as they are") {
  manual_seed(4);
  const RecordedModel model;
  const Tensor x = Tensor::randn({all_rows, 3}), y = Tensor::randn({all_rows, 4});
  const auto loss = [&](std::int64_t begin, std::int64_t end) {
    const Tensor h = linear(of_samples(x.slice(begin, end)), model.w, model.b);
    return mse(batch_norm(h, model.scale, model.shift), of_samples(y.slice(begin, end)));
  };
  LaneRecord record(model.parameters());
  {
    const LaneScope lanes(std::make_shared<const Lanes>(all_rows, 4, Shard{}));
    const LaneRecord::Scope scope(record);
    Tape tape;
    tape.backward(loss(0, all_rows), Weight{all_rows, all_rows});
    record.take_gradients();
  }
  const auto before = model.w.gradient().to_vector<float>();
  for (int k = 0; k < 4; ++k) {
    const auto lane = std::make_shared<const Lanes>(all_rows, 4, Shard{k, 4});
    LaneRecord again(model.parameters(), record);
    const LaneScope lanes(lane);
    const LaneRecord::Scope scope(again);
    Tape tape;
    const Tensor result = loss(lane->first_row(), lane->first_row() + lane->rows());
    const LaneRecord::OtherGradients aside(tape.parameters_of(result));
    tape.backward(result, Weight{lane->rows(), all_rows});
    again.take_gradients();
    REQUIRE(again.parts().size() == record.parts().size());
    for (std::size_t i = 0; i < again.parts().size(); ++i) {
      const Tensor& one = again.parts()[i].lanes;
      const Tensor& all = record.parts()[i].lanes;
      CAPTURE(again.parts()[i].label);
      if (one.dtype() == DType::f32)
        CHECK(one.to_vector<float>() == all.slice(k, k + 1).to_vector<float>());
      else
        CHECK(one.to_vector<double>() == all.slice(k, k + 1).to_vector<double>());
    }
  }
  CHECK(model.w.gradient().to_vector<float>() == before);
}

TEST_CASE("lane record: a window that waits goes on as it was, whatever was done beside it") {
  const auto gradient = [](int lanes_beside, bool waits_beside) {
    manual_seed(6);
    const Parameter w(Tensor::randn({5, 7}), "w");
    const auto backward = [&](int lanes, bool sync) {
      const Tensor x = Tensor::randn({all_rows, 7});
      const LaneScope scope(std::make_shared<const Lanes>(all_rows, lanes, Shard{}));
      Tape tape;
      tape.backward(mean(square(linear(of_samples(x), w))), Weight(all_rows, all_rows),
                    {.sync = sync});
    };
    backward(4, false);
    if (lanes_beside > 0) {
      const PhiloxState stream = default_philox().state();
      const Tensor generator = default_generator().state().clone();
      {
        const LaneRecord::OtherGradients aside({w});
        backward(lanes_beside, !waits_beside);
        CHECK(w.gradient().defined());
      }
      default_philox().set_state(stream);
      default_generator().set_state(generator);
    }
    backward(4, false);
    backward(4, true);
    return w.gradient().to_vector<float>();
  };
  const std::vector<float> alone = gradient(0, false);
  for (const int lanes : {4, 2, 8})
    for (const bool waits : {false, true}) {
      CAPTURE(lanes);
      CAPTURE(waits);
      CHECK(gradient(lanes, waits) == alone);
    }
}

TEST_CASE("lane record: statistics of a part of the samples are refused in a step that is noted") {
  const auto own = std::make_shared<const Lanes>(all_rows, 4, Shard{0, 2});
  const RecordedModel model;
  const Tensor x = of_samples(Tensor::ones({own->rows(), 4}));
  const LaneScope lanes(own);
  LaneRecord record(model.parameters());
  const LaneRecord::Scope scope(record);
  CHECK_THROWS_WITH_AS(batch_norm(x, model.scale, model.shift),
                       doctest::Contains("all samples, and this rank has 6 of 10"), StateError);
}
