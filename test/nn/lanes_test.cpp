// Trainings with lanes: the same bits on any number of ranks, and those of a world without lanes in
// which every lane is a rank.

#include "lockstep/core/lanes.h"

#include <doctest/doctest.h>

#include <functional>
#include <mutex>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/lockstep.h"
#include "support/device.h"
#include "support/text.h"

using namespace lockstep;

namespace {

constexpr int lanes = 8;
constexpr std::int64_t samples = 100, batch_size = 44;  // batches of 44, 44, 12; lanes of 6 or 2

data::TensorDataset make_data() {
  manual_seed(3);
  const Tensor x = Tensor::randn({samples, 12}), y = Tensor::empty({samples}, DType::i64);
  for (std::int64_t i = 0; i < samples; ++i) y.data<std::int64_t>()[i] = (i * i + i / 3) % 5;
  return data::TensorDataset({{"x", x}, {"y", y}});
}

/// One training: a model, and what a step makes of a batch.
struct Recipe {
  std::function<nn::Sequential()> model;
  std::function<Tensor(nn::Sequential&, const data::Batch&)> loss;
  bool adam = false;
  double clip = 0;
  int window = 1;           // micro-batches of a step
  bool total_known = true;  // by the weight
  double bucket_cap_mb = 25;
};

nn::Sequential mlp() { return nn::Sequential{nn::Linear(12, 16), nn::ReLU(), nn::Linear(16, 5)}; }
Tensor classified(nn::Sequential& model, const data::Batch& batch) {
  return nn::cross_entropy(model(batch.x), batch.y);
}

/// What a rank trains with; the last of its batches in a step synchronizes.
using Batches = std::function<std::vector<data::Batch>(int epoch)>;

/// The digest of what a training ends with, and the losses of its backwards.
std::string train(const Recipe& recipe, World& world, const Batches& batches) {
  manual_seed(0);
  nn::Sequential model = recipe.model();
  model.to(test::test_device());
  nn::convert_sync_batchnorm(model, world);
  const std::vector<Parameter> parameters = model.parameters();
  std::unique_ptr<optim::Optimizer> optimizer;
  if (recipe.adam)
    optimizer = std::make_unique<optim::Adam>(parameters, optim::Adam::Options{.lr = 0.01});
  else
    optimizer =
        std::make_unique<optim::SGD>(parameters, optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
  dist::DistributedDataParallel ddp(parameters, model.buffers(), world,
                                    {.bucket_cap_mb = recipe.bucket_cap_mb});
  dist::LossLog losses;
  for (int epoch = 0; epoch < 2; ++epoch) {
    const std::vector<data::Batch> all = batches(epoch);
    for (std::size_t k = 0; k < all.size(); ++k) {
      const data::Batch& batch = all[k];
      const bool last =
          (k + 1) % static_cast<std::size_t>(recipe.window) == 0 || k + 1 == all.size();
      LaneScope scope;
      std::optional<kernels::ChainProducts> chains;
      if (batch.lanes)
        scope.set(batch.lanes);
      else
        chains.emplace();  // the products of tapes with lanes
      Tape tape;
      const Tensor loss = recipe.loss(model, batch);
      Weight weight = batch.weight;
      if (!recipe.total_known) weight.total = Weight::summed;
      tape.backward(loss, weight, {.sync = last});
      losses.add(loss, weight);
      if (!last) continue;
      if (recipe.clip > 0) optim::clip_grad_norm(parameters, recipe.clip);
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  std::vector<Parameter> state = parameters;
  for (const Buffer& buffer : model.buffers())
    if (buffer.value.dtype() == DType::f32) state.emplace_back(buffer.value.clone(), buffer.name);
  std::string result = parameter_digest(state);
  for (const dist::LossLog::Step& step : losses.settle(world))
    result += fmt::format(" {}", step.mean());
  return result;
}

/// The batches of a Loader, with their lanes.
Batches loaded(const World& world, int lane_count) {
  return [&world, lane_count](int epoch) {
    const data::Loader loader(make_data(),
                              {.batch = batch_size,
                               .total_batch = lane_count == 0 ? batch_size : 0,
                               .shuffle = true,
                               .lanes = lane_count,
                               .device = test::test_device()},
                              world, epoch);
    std::vector<data::Batch> all;
    for (std::int64_t k = 0; k < loader.steps(); ++k) all.push_back(loader.batch(k));
    return all;
  };
}

/// Without lanes: rank r of `lanes` ranks gets what would be lane r.
Batches one_lane(const World& world) {
  return [&world](int epoch) {
    std::vector<data::Batch> all;
    const data::Loader whole(make_data(),
                             {.batch = batch_size, .shuffle = true, .device = test::test_device()},
                             {}, epoch);
    for (std::int64_t k = 0; k < whole.steps(); ++k) {
      data::Batch batch = whole.batch(k);
      const std::int64_t rows = batch.x.size(0);
      const std::int64_t begin = lane_begin(rows, lanes, world.rank()),
                         end = lane_begin(rows, lanes, world.rank() + 1);
      batch.x = batch.x.slice(begin, end).clone();
      batch.y = batch.y.slice(begin, end).clone();
      batch.weight = Weight(end - begin, rows);
      all.push_back(std::move(batch));
    }
    return all;
  };
}

using Source = std::function<Batches(const World&)>;

std::string hash(const Recipe& recipe, int ranks, const Source& source,
                 const JoinOptions& options = {}) {
  std::string digest;
  std::mutex mutex;
  run_threads(ranks, options, [&](World& world) {
    const std::string mine = train(recipe, world, source(world));
    const std::lock_guard lock(mutex);
    check<Error>(digest.empty() || digest == mine, "rank {} has {}, another one {}", world.rank(),
                 mine, digest);
    digest = mine;
  });
  return digest;
}

std::string with_lanes(const Recipe& recipe, int ranks, const JoinOptions& options = {}) {
  return hash(
      recipe, ranks, [](const World& world) { return loaded(world, lanes); }, options);
}

/// `as_ranks`: nothing in it is drawn or kept for each rank.
void check_recipe(const Recipe& recipe, bool as_ranks = true) {
  const std::string one = with_lanes(recipe, 1);
  for (const int ranks : {2, 3, 4, 5, 8}) {
    CAPTURE(ranks);
    CHECK(with_lanes(recipe, ranks) == one);
  }
  if (as_ranks) CHECK(hash(recipe, lanes, one_lane) == one);
}

}  // namespace

// The host reads the sums while a bucket is under way, which the others may not have looked at.
TEST_CASE("lanes: sums that ranks exchange in backward, behind a bucket that has been launched") {
  const auto model = [] {
    return nn::Sequential{nn::Linear(12, 16), nn::BatchNorm(16), nn::ReLU(),      nn::Linear(16, 8),
                          nn::BatchNorm(8),   nn::ReLU(),        nn::Linear(8, 5)};
  };
  const Recipe recipe{.model = model, .loss = classified, .bucket_cap_mb = 0.0005};
  CHECK(with_lanes(recipe, 3, {.timeout = dist::Seconds(10)}) == with_lanes(recipe, 1));
}

TEST_SUITE_BEGIN("not-late");  // about ranks

TEST_CASE("lanes: an MLP, on 1 to 8 ranks and with a rank for each lane") {
  check_recipe({.model = mlp, .loss = classified});
  check_recipe({.model = mlp, .loss = classified, .adam = true, .bucket_cap_mb = 0.0005});
}

TEST_CASE("lanes: without them the bits depend on the ranks") {
  const Recipe recipe{.model = mlp, .loss = classified};
  const Source plain = [](const World& world) { return loaded(world, 0); };
  CHECK(hash(recipe, 1, plain) != hash(recipe, 2, plain));
  CHECK(hash(recipe, 2, plain) != hash(recipe, 3, plain));
  CHECK(hash(recipe, 1, plain) != with_lanes(recipe, 1));
}

TEST_CASE("lanes: statistics of batches") {
  const auto model = [] {
    return nn::Sequential{nn::Linear(12, 16), nn::BatchNorm(16), nn::ReLU(), nn::Linear(16, 5)};
  };
  check_recipe({.model = model, .loss = classified});
}

TEST_CASE("lanes: dropout draws the same for a sample, whoever has it") {
  const auto model = [] {
    return nn::Sequential{nn::Linear(12, 16), nn::Dropout(0.3), nn::ReLU(), nn::Dropout(0.5),
                          nn::Linear(16, 5)};
  };
  check_recipe({.model = model, .loss = classified, .clip = 0.5}, false);
}

TEST_CASE("lanes: what is made of parameters is no sample, whatever its size is") {
  // In a world of 1 a batch has 44 rows, or 12: so have the weights.
  const auto model = [] { return nn::Sequential{nn::Linear(12, 44), nn::Linear(44, 5)}; };
  check_recipe({.model = model,
                .loss =
                    [](nn::Sequential& m, const data::Batch& batch) {
                      const auto p = m.parameters();  // (44, 12), (44,), (5, 44), (5,)
                      (void)dropout(p[0], 0.5);       // draws for parameters: the same on all ranks
                      const Tensor h = dropout(relu(linear(batch.x, p[0], p[1])), 0.2);
                      return nn::cross_entropy(linear(h, p[2], p[3]), batch.y);
                    }},
               false);
}

TEST_CASE("lanes: ranks that cut the batch in other ways are told apart") {
  const auto lanes_of_rank = [](const std::function<int(int)>& count) {
    try {
      (void)hash({.model = mlp, .loss = classified}, 2,
                 [&](const World& world) { return loaded(world, count(world.rank())); });
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(lanes_of_rank([](int) { return lanes; }) == "");
  CHECK(test::contains(lanes_of_rank([](int rank) { return rank == 0 ? 8 : 16; }), "loader"));
  CHECK(lanes_of_rank([](int rank) { return rank == 0 ? 8 : 0; }) != "");
}

TEST_CASE("lanes: a tape without them does not add those of the step before") {
  const auto gradient = [](bool after_lanes) {
    manual_seed(0);
    nn::Sequential model{nn::Linear(12, 12), nn::Linear(12, 5)};
    const auto backward = [&](int count) {
      for (const Parameter& parameter : model.parameters()) parameter.zero_grad();
      const data::Batch batch = data::Loader(make_data(), {.batch = 16, .lanes = count}).batch(0);
      const LaneScope scope(batch.lanes);
      Tape tape;
      const Tensor h = model[0](relu(model[0](batch.x)));  // twice: its lanes wait
      tape.backward(nn::cross_entropy(model[1](h), batch.y), batch.weight);
      return model.parameters()[0].gradient().to_vector<float>();
    };
    const kernels::ChainProducts chains;
    if (after_lanes) (void)backward(8);
    for (const Parameter& parameter : model.parameters())
      parameter.value().fill(0.01);  // another gradient than before
    return backward(0);
  };
  CHECK(gradient(true) == gradient(false));
}

TEST_CASE("lanes: several backwards of one batch, totals that nobody knows" *
          doctest::test_suite("not-sim not-late")) {
  check_recipe({.model = mlp, .loss = classified, .window = 2});
  check_recipe({.model = mlp, .loss = classified, .adam = true, .clip = 0.1, .window = 3});
  check_recipe({.model = mlp, .loss = classified, .total_known = false});
}

TEST_CASE("lanes: a parameter that is used several times, and blocks that are computed again" *
          doctest::test_suite("not-sim not-late")) {
  const auto twice = [] { return nn::Sequential{nn::Linear(12, 12), nn::Linear(12, 5)}; };
  check_recipe({.model = twice, .loss = [](nn::Sequential& model, const data::Batch& batch) {
                  Tensor h = model[0](batch.x);
                  for (int i = 0; i < 2; ++i) h = model[0](relu(h));
                  return nn::cross_entropy(model[1](h), batch.y);
                }});
  check_recipe({.model = twice, .loss = [](nn::Sequential& model, const data::Batch& batch) {
                  const Tensor h = checkpoint(
                      [&model](const Tensor& x) { return relu(model[0](relu(model[0](x)))); },
                      batch.x);
                  const Tensor again =
                      checkpoint([&model](const Tensor& x) { return relu(model[0](x)) + x; }, h);
                  return nn::cross_entropy(model[1](again), batch.y);
                }});
}

TEST_CASE("lanes: norms, products of batches, a table, other losses") {
  const auto mixer = [] {
    return nn::Sequential{nn::Linear(3, 4), nn::LayerNorm(4), nn::GELU(),
                          nn::Linear(4, 4), nn::RMSNorm(4),   nn::Residual(nn::Linear(4, 4)),
                          nn::Linear(16, 5)};
  };
  check_recipe({.model = mixer, .loss = [](nn::Sequential& model, const data::Batch& batch) {
                  Tensor h = reshape(batch.x, {batch.x.size(0), 4, 3});
                  for (int i = 0; i < 6; ++i) h = model[i](h);
                  const Tensor mixed = softmax(matmul(h, transpose(h)), -1);
                  const Tensor weight = Tensor::linspace(0.5, 2, 5).to(h.device());
                  return cross_entropy(
                      model[6](flatten(matmul(mixed, h), 1)), batch.y,
                      {.weight = weight, .label_smoothing = 0.1, .ignore_index = 2});
                }});
  const auto table = [] { return nn::Sequential{nn::Embedding(5, 6), nn::Linear(6, 12)}; };
  check_recipe({.model = table, .loss = [](nn::Sequential& model, const data::Batch& batch) {
                  const Tensor guess = model(batch.y), d = guess - batch.x;
                  return nn::mse(guess, batch.x) + mean(abs(d)) * 0.5 - scale(mean(d), 0.1);
                }});
}

TEST_CASE("lanes: groups of channels, and what is made of parameters alone") {
  const auto grouped = [] {
    return nn::Sequential{nn::Linear(12, 16), nn::GroupNorm(4, 16), nn::ReLU(), nn::Linear(16, 5)};
  };
  check_recipe({.model = grouped, .loss = classified});
  check_recipe({.model = mlp, .loss = [](nn::Sequential& model, const data::Batch& batch) {
                  const auto p = model.parameters();  // weights that are normalized, and tied
                  const Tensor w = p[0] / (norm(p[0], 1, keepdim) + 0.1);
                  const Tensor h = relu(linear(batch.x, w, p[1])) * exp(p[1] * 0.1);
                  return nn::cross_entropy(matmul(h, transpose(tanh(p[2]))) + p[3], batch.y);
                }});
}

// In a world of 5 or 8 ranks a rank has 6 rows, or 2.
TEST_CASE("lanes: masks and numbers that all samples share") {
  check_recipe({.model = mlp,
                .loss =
                    [](nn::Sequential& model, const data::Batch& batch) {
                      const Tensor h = relu(model[0](batch.x));
                      const Tensor mask = dropout(Tensor::ones({1, 16}).to(h.device()), 0.5);
                      const Tensor noise = Tensor::randn({6, 16}) * Tensor::rand({1, 16});
                      const Tensor shift = mean(noise, 0).to(h.device());
                      return nn::cross_entropy(model[2](h * mask + shift * 0.1), batch.y);
                    }},
               false);
}

TEST_CASE("lanes: transports and algorithms do not change a bit") {
  const Recipe recipe{.model = mlp, .loss = classified, .bucket_cap_mb = 0.0005};
  const std::string one = with_lanes(recipe, 1);
  for (const char* comm : {"direct", "one-shot", "halving"})
    for (const int ranks : {2, 3, 7}) CHECK(with_lanes(recipe, ranks, {.comm = comm}) == one);
}

TEST_CASE("lanes: what cannot keep the promise is refused, by name") {
  using test::contains;
  const auto refused = [](const Recipe& recipe, const std::string& text,
                          const JoinOptions& options = {}, int ranks = 2) {
    std::string message;
    try {
      with_lanes(recipe, ranks, options);
    } catch (const Error& error) {
      message = error.what();
    }
    CAPTURE(message);
    CHECK(contains(message, text));
  };
  const auto of = [](std::function<Tensor(nn::Sequential&, const data::Batch&)> loss) {
    return Recipe{.model = mlp, .loss = std::move(loss)};
  };
  refused({.model = mlp, .loss = classified}, "balanced tree, and ring", {.comm = "ring"});
  refused(of([](nn::Sequential& model, const data::Batch& batch) {
            return nn::cross_entropy(model(batch.x), batch.y) + sum(square(model.parameters()[0]));
          }),
          "[add] of a loss");
  refused(of([](nn::Sequential& model, const data::Batch& batch) {
            return square(nn::cross_entropy(model(batch.x), batch.y));
          }),
          "[square] of a loss");
  refused(of([](nn::Sequential& model, const data::Batch& batch) {
            return relu(nn::cross_entropy(model(batch.x), batch.y));
          }),
          "[relu] of a loss");
  refused(of([](nn::Sequential& model, const data::Batch& batch) {
            const Tensor y = model(batch.x);
            return mean(y - mean(y, 0, keepdim));
          }),
          "[mean] of shape");
  refused(of([](nn::Sequential& model, const data::Batch& batch) {
            const Tensor y = model(batch.x);
            return mean(matmul(y, y, {.transpose_b = true}));
          }),
          "[matmul]");
  refused(of([](nn::Sequential& model, const data::Batch& batch) {
            const Tensor mixed = batch.x * 0.7 + flip(batch.x, {0}) * 0.3;
            return nn::cross_entropy(model(mixed), batch.y);
          }),
          "was made by [flip], which mixes");
  refused(of([](nn::Sequential& model, const data::Batch& batch) {
            return nn::cross_entropy(model(batch.x), flip(batch.y, {0}));
          }),
          "[cross_entropy] operand 1");
  refused(
      of([](nn::Sequential& model, const data::Batch& batch) {
        return nn::mse(model(batch.x), Tensor::randn({batch.x.size(0), 5}).to(batch.x.device()));
      }),
      "has a row for each sample of this rank", {}, 3);
  refused(of([](nn::Sequential& model, const data::Batch&) {
            return sum(square(model.parameters()[0]));
          }),
          "is made of no samples");
}

TEST_SUITE_END();
