// What each rank's data counts for: tokens, uneven batches, ranks that finish early, evaluation.

#include <doctest/doctest.h>

#include "lockstep/data/sampler.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct Tokens {
  std::int64_t begin, end;
  double count() const { return static_cast<double>(end - begin); }
};

/// d(loss)/d(w) is the mean over the tokens of 10, 11, 12, ...
Tensor token_loss(const Parameter& w, Tokens tokens) {
  const Tensor values = Tensor::empty({tokens.end - tokens.begin}, DType::f64);
  for (std::int64_t i = 0; i < values.numel(); ++i)
    values.data<double>()[i] = static_cast<double>(10 + tokens.begin + i);
  return mean(values * w);
}

double mean_of(Tokens tokens) {
  return 10 + static_cast<double>(tokens.begin + tokens.end - 1) / 2;
}

}  // namespace

TEST_CASE("trap 8: token weights give the mean over all tokens, not the mean of the ranks' means") {
  const std::vector<Tokens> sentences = {{0, 1}, {1, 10}, {10, 12}};
  run_threads(3, {}, [&](World& world) {
    const Parameter w = scalar("w", 1);
    DistributedDataParallel ddp({w}, {}, world);
    const Tokens mine = sentences[dist::index(world.rank())];
    const double right = mean_of({0, 12}), mean_of_means = (10 + 15 + 20.5) / 3;
    const auto gradient = [&](std::optional<Weight> weight) {
      w.zero_grad();
      Tape tape;
      tape.backward(token_loss(w, mine), weight);
      return gradient_of(w);
    };
    const double summed = gradient(Weight{mine.count()}),
                 known = gradient(Weight{mine.count(), 12});
    expect(std::abs(summed - right) < 1e-13, "total summed on the way: {}", summed);
    expect(std::abs(known - right) < 1e-13, "total known: {}", known);
    // Negative control: without weights, as a loss averaged per rank has it.
    const double unweighted = gradient({});
    expect(std::abs(unweighted - mean_of_means) < 1e-13, "{}", unweighted);
    expect(std::abs(right - mean_of_means) > 0.3, "the test's data show the difference");
  });
}

TEST_CASE("trap 8: so do windows of several sentences, of different numbers on each rank") {
  const std::vector<std::vector<Tokens>> sentences = {{{0, 1}, {1, 10}}, {{10, 12}}};
  run_threads(2, {}, [&](World& world) {
    const Parameter w = scalar("w", 1);
    DistributedDataParallel ddp({w}, {}, world);
    const std::vector<Tokens>& mine = sentences[dist::index(world.rank())];
    for (const Tokens& sentence : mine) {
      const bool last = &sentence == &mine.back();
      Tape tape;
      tape.backward(token_loss(w, sentence), Weight{sentence.count()}, {.sync = last});
    }
    expect(std::abs(gradient_of(w) - mean_of({0, 12})) < 1e-13, "{}", gradient_of(w));
  });
}

namespace {

using Batches = std::vector<std::vector<std::int64_t>>;  ///< rows, by rank and step

std::int64_t rows_of(const Batches& batches, int rank, std::size_t step) {
  const auto& mine = batches[dist::index(rank)];
  return step < mine.size() ? mine[step] : 0;
}

/// The step's rows begin at 20 * step; those of a rank behind those of the ranks before it.
std::int64_t begin_of(const Batches& batches, int rank, std::size_t step) {
  std::int64_t begin = 20 * static_cast<std::int64_t>(step);
  for (int r = 0; r < rank; ++r) begin += rows_of(batches, r, step);
  return begin;
}

/// A rank's training: all its steps, then those it takes for the others' sake, then one more with
/// everybody, in which the optimizers' states show.
void train_until_all_have_joined(NormalizedNet& model, World& world, const Batches& batches) {
  nn::convert_sync_batchnorm(model, world);
  DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  optim::Adam optimizer(model.parameters(), {.lr = 0.05});
  const auto step = [&](std::size_t k, std::int64_t mine) {
    const std::int64_t begin = begin_of(batches, world.rank(), k);
    optimizer.zero_grad();
    Tape tape;
    tape.backward(loss_of(model, begin, begin + mine), Weight{static_cast<double>(mine)});
    optimizer.step();
  };
  std::size_t k = 0;
  for (const std::int64_t mine : batches[dist::index(world.rank())]) step(k++, mine);
  while (ddp.join()) step(k++, 0);

  const std::int64_t begin = 100 + 2 * world.rank();
  optimizer.zero_grad();
  Tape tape;
  tape.backward(loss_of(model, begin, begin + 2));
  optimizer.step();
}

}  // namespace

TEST_CASE("trap 9: ranks that end early join the others' steps, one without any batch included") {
  const Batches batches = {{3, 2, 4}, {2}, {}};
  run_threads(3, {}, [&](World& world) {
    manual_seed(9);
    NormalizedNet model, whole;
    whole.load_state_dict(model.state_dict());
    train_until_all_have_joined(model, world, batches);
    expect(replicas_agree(world.communicator(), model.parameters()), "replicas differ");

    // One process on the union of each step's rows.
    optim::Adam optimizer(whole.parameters(), {.lr = 0.05});
    for (std::size_t k = 0; k < 4; ++k) {
      const std::int64_t begin = k < 3 ? begin_of(batches, 0, k) : 100;
      const std::int64_t end = k < 3 ? begin_of(batches, 3, k) : 106;
      optimizer.zero_grad();
      Tape tape;
      tape.backward(loss_of(whole, begin, end));
      optimizer.step(optim::local);
    }
    expect_same_values(model, whole, 1e-12);
  });
}

TEST_CASE("trap 9: the first rank may be the one without data") {
  run_threads(2, {}, [](World& world) {
    const Parameter w = scalar("w", 8);
    DistributedDataParallel ddp({w}, {}, world);
    optim::SGD optimizer({w}, {.lr = 0.25});
    const auto step = [&](const Tensor& x) {
      optimizer.zero_grad();
      Tape tape;
      tape.backward(mean(x * w), Weight{static_cast<double>(x.numel())});
      optimizer.step();
    };
    if (world.rank() == 1)
      for (int k = 0; k < 3; ++k) step(Tensor::full({2}, 4, DType::f64));
    const auto join_the_others = [&] {
      int others = 0;
      for (; ddp.join(); ++others) step(Tensor::zeros({0}, DType::f64));
      return others;
    };
    int others = join_the_others();
    expect(others == (world.rank() == 0 ? 4 : 1), "{} steps for the others", others);
    expect(w.value().item() == 8 - 3 * 0.25 * 4, "w is {}", w.value().item());

    // In the next epoch the other rank has nothing. That all had joined in the last one is past.
    if (world.rank() == 0) step(Tensor::full({2}, 4, DType::f64));
    others = join_the_others();
    expect(others == (world.rank() == 0 ? 1 : 2), "{} steps for the others", others);
    expect(w.value().item() == 8 - 4 * 0.25 * 4, "w is {}", w.value().item());
  });
}

TEST_CASE("trap 20: SyncBatchNorm over uneven and empty batches is BatchNorm on the union") {
  for (const std::vector<std::int64_t>& sizes :
       std::vector<std::vector<std::int64_t>>{{5, 3}, {7, 0, 2}, {0, 4}, {1, 1}})
    run_threads(static_cast<int>(sizes.size()), {}, [&](World& world) {
      manual_seed(20);
      NormalizedNet model, whole, alone;
      whole.load_state_dict(model.state_dict());
      alone.load_state_dict(model.state_dict());
      Batches batches;
      for (const std::int64_t size : sizes) batches.push_back({size});
      const std::int64_t mine = sizes[dist::index(world.rank())];
      const std::int64_t begin = begin_of(batches, world.rank(), 0);
      const std::int64_t all = begin_of(batches, world.size(), 0);

      nn::convert_sync_batchnorm(model, world);
      const Weight weight{static_cast<double>(mine), static_cast<double>(all)};
      DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
      DistributedDataParallel plain(alone.parameters(), alone.buffers(), world);
      {
        Tape tape;
        tape.backward(loss_of(model, begin, begin + mine), weight);
        Tape one_process;
        one_process.backward(loss_of(whole, 0, all));
      }
      expect_same_gradients(model, whole);
      expect_same_values(model, whole, 1e-14);
      if (mine == 1) return;  // alone, a row has no variance
      // Negative control: batches that each rank normalizes by itself are something else.
      Tape tape;
      tape.backward(loss_of(alone, begin, begin + mine), weight);
      expect(distance(alone.first.weight.gradient(), whole.first.weight.gradient()) > 1e-4 ||
                 mine == all || all - mine == all,
             "the ranks' own statistics give the same");
    });
}

TEST_CASE("trap 20: one value per channel on all ranks together is an error on all of them") {
  const auto messages = messages_on_threads(3, [](World& world) {
    NormalizedNet model;
    nn::convert_sync_batchnorm(model, world);
    DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    Tape tape;
    const std::int64_t mine = world.rank() == 1 ? 1 : 0;
    tape.backward(loss_of(model, 0, mine), Weight{static_cast<double>(mine), 1});
  });
  check_all_say(messages, {"[BatchNorm] a batch needs more than 1 value per channel",
                           "on all ranks together"});
}

TEST_CASE("trap 26: evaluation in unpadded shards counts every sample once") {
  constexpr std::int64_t samples = 10;
  run_threads(4, {}, [](World& world) {
    const auto counts = [&](bool padded) {  // how often each sample is evaluated, over all ranks
      const Tensor seen = Tensor::zeros({samples}, DType::f64);
      const data::EpochPlan plan(samples, {.batch = 2, .padded = padded}, world);
      for (std::int64_t step = 0; step < plan.steps(); ++step)
        for (std::int64_t row = 0; row < plan.rows(step); ++row)
          seen.data<double>()[plan.position(step, row)] += 1;
      world.communicator().all_reduce(seen, "samples seen").wait();
      return seen.to_vector<double>();
    };
    expect(counts(false) == std::vector<double>(samples, 1), "not each once");
    // Negative control: equal shards repeat the first two.
    expect(counts(true) == std::vector<double>{2, 2, 1, 1, 1, 1, 1, 1, 1, 1}, "padded");
  });
}

TEST_CASE("weights that an f32, or a sum of gradients times weights, cannot hold are refused") {
  const Parameter w = scalar("w", 1);
  const auto gradient = [&](Weight weight) {
    w.zero_grad();
    Tape tape;
    tape.backward(scale(w, 1), weight);
    return gradient_of(w);
  };
  for (const double weight : {1e308, 1e-320, 1e-16, 1e16, std::nan("")}) {
    CHECK_THROWS_AS(gradient(Weight{weight}), StateError);
    CHECK_THROWS_AS(gradient(Weight{weight, weight}), StateError);
  }
  CHECK_THROWS_AS(gradient(Weight{1, 1e16}), StateError);
  CHECK_THROWS_WITH_AS(
      gradient(Weight{-2}),
      "[backward] weight -2 of a total to be summed: it is 0 or 1e-15..1e15, and at most its total",
      StateError);
  CHECK(gradient(Weight{0.1 + 0.2, 0.3}) > 1);  // a total that was rounded in another order
  CHECK(gradient(Weight{0.7, static_cast<double>(0.7f)}) > 1);
  CHECK_THROWS_AS(gradient(Weight{0.7, 0.699}), StateError);
  CHECK(gradient(Weight{1e-15, 1e-15}) == 1);
  CHECK(gradient(Weight{1e15, 1e15}) == 1);
}
