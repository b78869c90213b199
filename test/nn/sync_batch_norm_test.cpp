// SyncBatchNorm in simulated worlds: the ranks' batches together are one.

#include <doctest/doctest.h>

#include <cmath>

#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/simulated/simulated_world.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/nn/batch_norm.h"
#include "nn/batch_norm_support.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace sync_batch_norm {
namespace {

constexpr std::int64_t channels = 3;

void run(int size, const std::function<void(dist::Communicator&)>& program) {
  run_simulated({.seed = 7, .size = size}, program);
}

/// Rows [begin, begin + rows) of a data set of rows of shape `row`, around a mean per channel.
Tensor rows_of(std::int64_t begin, std::int64_t rows, const Batches& row, DType dtype,
               double mean = 2, double phase = 0) {
  std::vector<std::int64_t> sizes = {rows};
  sizes.insert(sizes.end(), row.begin(), row.end());
  const Shape shape(sizes);
  const std::int64_t width = Shape(row).numel(), length = width / channels;
  const Tensor x = Tensor::empty(shape, dtype);
  visit_floating("rows", dtype, [&](auto zero) {
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const auto channel = static_cast<double>(i % width / length);
      const double wave = std::sin(0.9 * static_cast<double>(begin * width + i) + phase);
      x.data<decltype(zero)>()[i] =
          static_cast<decltype(zero)>(mean * (1 + channel) + (1 + channel / 2) * wave);
    }
  });
  return here(x);
}

/// What a training step leaves on one rank.
struct Outcome {
  Values y, dx, dweight, dbias, running_mean, running_var;
};

/// A forward and a backward of sum(y * dy).
Outcome step(nn::BatchNorm& layer, const Tensor& batch, const Tensor& dy) {
  for (const Parameter& parameter : layer.parameters()) parameter.zero_grad();
  Tape tape;
  const Tensor x = tape.watch(batch);
  const Tensor y = layer(x);
  tape.backward(sum(y * dy));
  return {values_of(y.detach()),
          values_of(tape.gradient(x)),
          values_of(layer.weight.gradient()),
          values_of(layer.bias.gradient()),
          values_of(layer.running_mean),
          values_of(layer.running_var)};
}

/// The ranks' steps as one: rows one after another, the parameters' gradients added up.
Outcome joined(const std::vector<Outcome>& ranks) {
  Outcome all = ranks[0];
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    all.y.insert(all.y.end(), ranks[r].y.begin(), ranks[r].y.end());
    all.dx.insert(all.dx.end(), ranks[r].dx.begin(), ranks[r].dx.end());
    for (std::size_t c = 0; c < all.dweight.size(); ++c) {
      all.dweight[c] += ranks[r].dweight[c];
      all.dbias[c] += ranks[r].dbias[c];
    }
  }
  return all;
}

void check_equal(const Outcome& actual, const Outcome& expected, double tolerance) {
  CHECK(distance(actual.y, expected.y) <= tolerance);
  CHECK(distance(actual.dx, expected.dx) <= tolerance);
  CHECK(distance(actual.dweight, expected.dweight) <= tolerance);
  CHECK(distance(actual.dbias, expected.dbias) <= tolerance);
  CHECK(distance(actual.running_mean, expected.running_mean) <= tolerance);
  CHECK(distance(actual.running_var, expected.running_var) <= tolerance);
}

/// Steps of the layer on each rank's part of the rows; by step.
std::vector<Outcome> steps_of_ranks(const Batches& batches, const Batches& row, DType dtype,
                                    bool synchronized, int steps, double mean = 2) {
  std::vector<std::vector<Outcome>> outcomes(static_cast<std::size_t>(steps));
  for (auto& of_step : outcomes) of_step.resize(batches.size());
  run(size_of(batches), [&](dist::Communicator& communicator) {
    const auto me = static_cast<std::size_t>(communicator.rank());
    nn::BatchNorm layer(channels, {.dtype = dtype});
    if (synchronized) layer.synchronize(communicator);
    layer.to(test_device());
    for (std::size_t k = 0; k < outcomes.size(); ++k) {
      const std::int64_t begin =
          100 * static_cast<std::int64_t>(k) + begin_of(batches, communicator.rank());
      outcomes[k][me] = step(layer, rows_of(begin, batches[me], row, dtype, mean),
                             rows_of(begin, batches[me], row, dtype, 0.5, 1));
    }
  });
  std::vector<Outcome> result;
  for (const auto& of_step : outcomes) {
    for (const Outcome& rank : of_step) {  // the same bits on every rank
      CHECK((!synchronized || rank.running_mean == of_step[0].running_mean));
      CHECK((!synchronized || rank.running_var == of_step[0].running_var));
    }
    result.push_back(joined(of_step));
  }
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("over ranks it is BatchNorm on the union: uneven and empty batches", T, float,
                   double) {
  const DType dtype = dtype_of<T>();
  for (const Batches& batches : std::vector<Batches>{{8},
                                                     {5, 3},
                                                     {7, 0, 2},
                                                     {0, 6},
                                                     {4, 0, 0},
                                                     {1, 1, 1},
                                                     {2, 3, 1, 4},
                                                     {1, 2, 0, 3, 1, 0, 2}})
    for (const Batches& row : std::vector<Batches>{{channels}, {channels, 4}, {channels, 2, 3}}) {
      CAPTURE(text_of(batches));
      CAPTURE(text_of(row));
      const auto ranks = steps_of_ranks(batches, row, dtype, true, 2);
      const auto whole = steps_of_ranks({total_of(batches)}, row, dtype, false, 2);
      for (std::size_t k = 0; k < whole.size(); ++k)
        check_equal(ranks[k], whole[k], dtype == DType::f32 ? 1e-6 : 1e-13);
    }
}

TEST_CASE("a negative control: BatchNorm per rank is not BatchNorm on the union") {
  const auto ranks = steps_of_ranks({5, 3}, {channels}, DType::f64, false, 1);
  const auto whole = steps_of_ranks({8}, {channels}, DType::f64, false, 1);
  CHECK(distance(ranks[0].y, whole[0].y) > 0.01);
}

TEST_CASE("means of 1e4 in f32, against f64; naive sums fail") {
  const Batches batches = {7, 0, 2};
  constexpr std::int64_t total = 9;
  const double mean = 1e4;
  const Outcome actual = steps_of_ranks(batches, {channels}, DType::f32, true, 1, mean)[0];
  const Values x = values_of(rows_of(0, total, {channels}, DType::f32, mean));
  const Values dy = values_of(rows_of(0, total, {channels}, DType::f32, 0.5, 1));

  Outcome expected{Values(x.size()), Values(x.size()), Values(channels),
                   Values(channels), Values(channels), Values(channels)};
  for (std::size_t c = 0; c < channels; ++c) {
    const auto over_rows = [&](const auto& f) {
      double result = 0;
      for (std::size_t i = c; i < x.size(); i += channels) result += f(i);
      return result;
    };
    const double center = over_rows([&](std::size_t i) { return x[i]; }) / total;
    const double m2 = over_rows([&](std::size_t i) { return (x[i] - center) * (x[i] - center); });
    const double scale = 1 / std::sqrt(m2 / total + 1e-5);
    const auto xhat = [&](std::size_t i) { return (x[i] - center) * scale; };
    expected.dbias[c] = over_rows([&](std::size_t i) { return dy[i]; });
    expected.dweight[c] = over_rows([&](std::size_t i) { return dy[i] * xhat(i); });
    for (std::size_t i = c; i < x.size(); i += channels) {
      expected.y[i] = xhat(i);
      expected.dx[i] =
          scale * (dy[i] - expected.dbias[c] / total - xhat(i) * expected.dweight[c] / total);
    }
    expected.running_mean[c] = 0.1 * center;
    expected.running_var[c] = 0.9 + 0.1 * m2 / (total - 1);

    float sum = 0, squares = 0;
    for (std::size_t i = c; i < x.size(); i += channels) {
      sum += static_cast<float>(x[i]);
      squares += static_cast<float>(x[i] * x[i]);
    }
    const float naive = squares / total - (sum / total) * (sum / total);
    CHECK(std::abs(naive - m2 / total) > 0.1 * m2 / total);
  }
  check_equal(actual, expected, 1e-6);
}

TEST_CASE("ranks are merged in the order of the tree, whatever arrives first") {
  const Batches batches = {2, 3, 1, 4, 2};
  struct Part {
    double count;
    Tensor mean, m2;
  };
  const auto part = [&](std::int64_t begin, std::int64_t rows) {
    const Tensor x = rows_of(begin, rows, {channels}, DType::f64, 123.4).to({});
    Part result{static_cast<double>(rows), Tensor::zeros({channels}, DType::f64),
                Tensor::zeros({channels}, DType::f64)};
    kernels::batch_statistics(x, result.mean, result.m2);
    return result;
  };
  const auto parts = [&] {
    return std::vector<Part>{part(0, 2), part(2, 3), part(5, 1), part(6, 4), part(10, 2)};
  };
  const auto merge = [](Part& a, const Part& b) {
    kernels::merge_statistics(a.count, a.mean, a.m2, b.count, b.mean, b.m2);
    a.count += b.count;
  };
  auto tree = parts(), chain = parts();  // ((0 + 1) + (2 + 3)) + 4
  merge(tree[0], tree[1]);
  merge(tree[2], tree[3]);
  merge(tree[0], tree[2]);
  merge(tree[0], tree[4]);
  for (std::size_t r = 1; r < chain.size(); ++r) merge(chain[0], chain[r]);

  run(size_of(batches), [&](dist::Communicator& communicator) {
    const auto me = static_cast<std::size_t>(communicator.rank());
    const std::int64_t begin = begin_of(batches, communicator.rank());
    nn::BatchNorm layer =
        nn::SyncBatchNorm(channels, communicator, {.momentum = 1, .dtype = DType::f64});
    layer(rows_of(begin, batches[me], {channels}, DType::f64, 123.4).to({}));
    check<Error>(values_of(layer.running_mean) == values_of(tree[0].mean), "not the tree's mean");
    for (std::int64_t c = 0; c < channels; ++c)
      check<Error>(layer.running_var.data<double>()[c] == tree[0].m2.data<double>()[c] * (1 / 11.0),
                   "not the tree's m2");
  });
  CHECK(values_of(chain[0].m2) != values_of(tree[0].m2));  // so the order is seen
}

TEST_CASE("one value per channel on all ranks together: the same error on all, and life goes on") {
  for (const Batches& batches : std::vector<Batches>{{1, 0}, {0, 1, 0}})
    run(size_of(batches), [&](dist::Communicator& communicator) {
      const auto me = static_cast<std::size_t>(communicator.rank());
      nn::BatchNorm layer = nn::SyncBatchNorm(channels, communicator);
      layer.to(test_device());
      std::string message;
      try {
        layer(rows_of(0, batches[me], {channels}, DType::f32));
      } catch (const ShapeError& error) {
        message = error.what();
      }
      const std::string expected = fmt::format(
          "layer SyncBatchNorm(3): [BatchNorm] a batch needs more than 1 value per channel, got 1 "
          "on all ranks together, shape ({}, 3) on this one",
          batches[me]);
      check<Error>(message == expected, "rank {} says '{}'", me, message);
      check<Error>(layer.num_batches_tracked.item() == 0, "counted");
      layer(rows_of(0, 2, {channels}, DType::f32));
      check<Error>(layer.num_batches_tracked.item() == 1, "not counted");
    });
}

TEST_CASE("no rank has data: empty results, and nothing is tracked") {
  const Outcome outcome = steps_of_ranks({0, 0}, {channels, 2}, DType::f64, true, 1)[0];
  CHECK(outcome.y.empty());
  CHECK(outcome.dx.empty());
  CHECK(outcome.dweight == Values(channels, 0));
  CHECK(outcome.running_mean == Values(channels, 0));
  CHECK(outcome.running_var == Values(channels, 1));
}

TEST_CASE("one message in forward, one in backward, in f64; the other side played by hand") {
  run(2, [](dist::Communicator& communicator) {
    const Tensor message = Tensor::empty({1 + 2 * channels}, DType::f64);
    const Tensor messages = Tensor::empty({2, 1 + 2 * channels}, DType::f64);
    const Tensor sums = Tensor::empty({2 * channels}, DType::f64);
    if (communicator.rank() == 0) {
      nn::BatchNorm layer = nn::SyncBatchNorm(channels, communicator, {.dtype = DType::f64});
      layer.to(test_device());
      const Tensor x = here(Tensor::of<double>({2, 3}, {1, 2, 3, 3, 2, 7}));
      step(layer, x, here(Tensor::of<double>({2, 3}, {1, 2, 3, 4, 5, 6})));
      // 1 and 3 here, 6 and 6 there: mean 4, m2 = 9 + 1 + 4 + 4.
      const double mean = values_of(layer.running_mean)[0], var = values_of(layer.running_var)[0];
      check<Error>(std::abs(mean - 0.1 * 4) < 1e-15, "mean {}", mean);
      check<Error>(std::abs(var - (0.9 + 0.1 * 18 / 3)) < 1e-15, "variance {}", var);
    } else {
      message.copy_from(Tensor::of<double>({7}, {2, 6, 6, 6, 0, 0, 0}));
      communicator.all_gather(message, messages, "layer 1: batch_norm 3 channels, forward").wait();
      check<Error>(values_of(messages.slice(0, 1)) == Values{2, 2, 2, 5, 2, 0, 8}, "forward");
      sums.fill_zero();
      communicator.all_reduce(sums, "layer 1: batch_norm 3 channels, backward").wait();
      check<Error>(values_of(sums.slice(0, 3)) == Values{5, 7, 9}, "sums of dy");
    }
    communicator.barrier("no further message").wait();
  });
}

TEST_CASE("evaluation and a world of 1 need nobody") {
  run(2, [](dist::Communicator& communicator) {
    nn::BatchNorm tracked = nn::SyncBatchNorm(channels, communicator);
    nn::BatchNorm stateless =
        nn::SyncBatchNorm(channels, communicator, {.track_running_stats = false});
    for (nn::BatchNorm* layer :
         {static_cast<nn::BatchNorm*>(&tracked), static_cast<nn::BatchNorm*>(&stateless)}) {
      layer->to(test_device());
      layer->eval();
      if (communicator.rank() == 0) (*layer)(rows_of(0, 4, {channels}, DType::f32));
    }
    communicator.barrier("the same number of calls on both").wait();
  });
  run(1, [](dist::Communicator& communicator) {
    nn::BatchNorm layer = nn::SyncBatchNorm(channels, communicator);
    layer.to(test_device());
    communicator.abort("whoever communicates now fails");
    step(layer, rows_of(0, 4, {channels}, DType::f32), rows_of(0, 4, {channels}, DType::f32));
  });
}

TEST_CASE("rows that count for nothing in the loss are refused: they are in the statistics") {
  std::vector<std::string> messages(2);
  run(2, [&](dist::Communicator& communicator) {
    const bool counts = communicator.rank() == 0;
    nn::BatchNorm layer = nn::SyncBatchNorm(channels, communicator, {.dtype = DType::f64});
    layer.to(test_device());
    Tape tape;
    const Tensor x = tape.watch(rows_of(4 * communicator.rank(), 4, {channels}, DType::f64));
    try {
      tape.backward(sum(layer(x)), counts ? Weight{1, 1} : Weight{0, 1});
    } catch (const Error& error) {
      messages[counts ? 0 : 1] = error.what();
    }
  });
  CHECK(messages[1].find("4 rows went into the statistics of all ranks") != std::string::npos);
  CHECK(messages[0].find("rank 1 is gone") != std::string::npos);
}

}  // namespace sync_batch_norm
