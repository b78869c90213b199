// Which data each rank takes: what the ranks' loaders say of a batch must fit together.

#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/data/loader.h"
#include "lockstep/kernels/elementwise.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

data::TensorDataset samples(std::int64_t n) {
  const Tensor x = Tensor::empty({n, 1}), y = Tensor::empty({n}, DType::i64);
  for (std::int64_t i = 0; i < n; ++i) {
    x.data<float>()[i] = static_cast<float>(i);
    y.data<std::int64_t>()[i] = i % 10;
  }
  return data::TensorDataset({{"x", x}, {"y", y}});
}

/// Which batches a rank takes: their parts of the data, and in which order.
struct Taken {
  Shard shard;
  std::vector<std::int64_t> steps = {0, 1, 2};
};

/// Every rank takes what `taken` says, with the loader's weights; what it then says.
std::vector<std::string> train(int ranks, const std::function<Taken(int rank)>& taken) {
  return messages_on_threads(ranks, [&](World& world) {
    const Parameter w = Parameter(Tensor::scalar(1), "w");
    DistributedDataParallel ddp({w}, {}, world);
    const Taken mine = taken(world.rank());
    const data::Loader loader(samples(60), {.batch = 3, .shuffle = true}, mine.shard);
    for (const std::int64_t step : mine.steps) {
      ddp.zero_grad();
      const data::Batch batch = loader.batch(step);
      Tape tape;
      tape.backward(mean(batch.x) * w, batch.weight);
    }
  });
}

}  // namespace

TEST_CASE("trap: the ranks' Shards are not those of the ranks") {
  for (const int n : {2, 3, 5}) {
    const std::string of_all = fmt::format(", and {} ranks train together", n);
    check_all_say(train(n,
                        [&](int) {
                          return Taken{{0, n}};
                        }),
                  {fmt::format("ranks 0 and 1 both took part 0 of {} of the data", n)});
    check_all_say(train(n,
                        [&](int r) {
                          return Taken{{r == 0 ? n - 1 : r, n}};
                        }),
                  {fmt::format("ranks 0 and {} both took part {}", n - 1, n - 1)});
    check_all_say(train(n,
                        [&](int r) {
                          return Taken{{r, n + 1}};
                        }),
                  {fmt::format("rank 0 took part 0 of {} of the data{}", n + 1, of_all)});
    check_all_say(train(n, [&](int) { return Taken{}; }),  // everybody takes everything
                  {"rank 0 took part 0 of 1 of the data" + of_all});
    check_all_say(train(n,
                        [&](int r) {
                          return r == 1 ? Taken{} : Taken{{r, n}};
                        }),
                  {"rank 1 took part 0 of 1 of the data" + of_all});
  }
}

TEST_CASE("trap: one rank takes its batches in another order, or is one ahead") {
  for (const int n : {2, 3, 5})
    for (const std::vector<std::int64_t>& other :
         {std::vector<std::int64_t>{2, 1, 0}, {1, 2, 3}, {0, 2, 1}}) {
      const auto messages = train(n, [&](int r) {
        return Taken{{r, n}, r == n - 1 ? other : Taken{}.steps};
      });
      const std::size_t at = other[0] == 0 ? 1 : 0;  // where they differ
      check_all_say(messages, {fmt::format("rank 0 took batch {} of the epoch, rank {} took batch "
                                           "{}",
                                           at, n - 1, other[at])});
    }
}

TEST_CASE("trap: within a window, and with the Shard of a larger world") {
  check_all_say(messages_on_threads(3,
                                    [](World& world) {
                                      const Parameter w = Parameter(Tensor::scalar(1), "w");
                                      DistributedDataParallel ddp({w}, {}, world);
                                      const data::Loader loader(samples(60), {}, {2, 3});
                                      for (const bool sync : {false, true}) {
                                        const data::Batch batch = loader.batch(0);
                                        Tape tape;
                                        tape.backward(mean(batch.x) * w, batch.weight,
                                                      {.sync = sync});
                                      }
                                    }),
                {"ranks 0 and 1 both took part 2 of 3"});
  check_all_say(messages_on_threads(4,
                                    [](World& world) {
                                      const World half = *world.split(world.rank() % 2);
                                      const Parameter w = Parameter(Tensor::scalar(1), "w");
                                      DistributedDataParallel ddp({w}, {}, half);
                                      const data::Loader loader(samples(60), {}, world);
                                      const data::Batch batch = loader.batch(0);
                                      Tape tape;
                                      tape.backward(mean(batch.x) * w, batch.weight);
                                    }),
                {" of 4 of the data, and 2 ranks train together"});
}

namespace {

struct Part {
  Shard shard;
  std::uint64_t seed;
  std::int64_t step;
};

/// Every rank accumulates what `parts` says, several times.
std::vector<std::string> accumulate(int ranks,
                                    const std::function<std::vector<Part>(int rank)>& parts) {
  return messages_on_threads(ranks, [&](World& world) {
    const Parameter w = Parameter(Tensor::scalar(1), "w");
    DistributedDataParallel ddp({w}, {}, world);
    for (int window = 0; window < 2; ++window) {
      ddp.zero_grad();
      const auto all = parts(world.rank());
      for (std::size_t i = 0; i < all.size(); ++i) {
        const data::LoaderOptions options{.batch = 2, .shuffle = true, .seed = all[i].seed};
        const data::Batch batch =
            data::Loader(samples(60), options, all[i].shard).batch(all[i].step);
        Weight weight = batch.weight;
        weight.total = Weight::summed;  // windows may have different lengths
        Tape tape;
        tape.backward(mean(batch.x) * w, weight, {.sync = i + 1 == all.size()});
      }
    }
  });
}

}  // namespace

TEST_CASE("trap: within a window one rank takes a batch twice, is ahead, or has another seed") {
  for (const int n : {2, 3, 5})
    for (const std::vector<Part>& other : {std::vector<Part>{{{1, n}, 4, 0}, {{1, n}, 4, 0}},
                                           {{{1, n}, 4, 1}, {{1, n}, 4, 2}},
                                           {{{1, n}, 5, 0}, {{1, n}, 4, 1}},
                                           {{{1, n}, 4, 0}, {{1, n}, 5, 1}}})
      check_all_say(
          accumulate(n,
                     [&](int r) {
                       return r == 1 ? other : std::vector<Part>{{{r, n}, 4, 0}, {{r, n}, 4, 1}};
                     }),
          {"of the 2 batches that they accumulated, ranks 0 and 1 took different ones"});
}

TEST_CASE("windows may take batches in any order, of several Shards, and of different lengths") {
  // Two loaders, on one rank in another order.
  check_all_well(accumulate(3, [](int r) {
    std::vector<Part> parts = {{{r, 3}, 4, 0}, {{r, 3}, 9, 0}};
    if (r == 1) std::swap(parts[0], parts[1]);
    return parts;
  }));
  // Two ranks take three Shards.
  check_all_well(accumulate(2, [](int r) {
    return r == 0 ? std::vector<Part>{{{0, 3}, 4, 0}, {{2, 3}, 4, 0}}
                  : std::vector<Part>{{{1, 3}, 4, 0}};
  }));
  // From the first ragged window on, ranks may be in different epochs, or at different batches.
  std::vector<int> windows(3);
  check_all_well(accumulate(3, [&](int r) {
    const std::int64_t step = windows[static_cast<std::size_t>(r)]++;
    if (step > 0) return std::vector<Part>{{{r, 3}, 4 + static_cast<std::uint64_t>(r), r}};
    return std::vector<Part>(static_cast<std::size_t>(1 + r), {{r, 3}, 4, 0});
  }));
}

TEST_CASE("trap: one rank has another version of the images, with the same labels") {
  for (const int n : {2, 3, 5})
    check_all_say(messages_on_threads(n,
                                      [&](World& world) {
                                        const Parameter w = Parameter(Tensor::scalar(1), "w");
                                        DistributedDataParallel ddp({w}, {}, world);
                                        const data::TensorDataset mine = samples(60);
                                        if (world.rank() == 1)
                                          kernels::scale(1 / 255.0, mine["x"], mine["x"], false);
                                        const data::Batch batch =
                                            data::Loader(mine, {}, world).batch(0);
                                        Tape tape;
                                        tape.backward(mean(batch.x) * w, batch.weight);
                                      }),
                  {"ranks 0 and 1 deal the data differently"});
}

TEST_CASE("Shards in another order, of a group, with ragged windows or split data are all right") {
  for (const int n : {1, 2, 3, 4, 7})
    check_all_well(train(n, [&](int r) { return Taken{{n - 1 - r, n}}; }));
  check_all_well(messages_on_threads(4, [](World& world) {
    const World half = *world.split(world.rank() % 2);
    const Parameter w = Parameter(Tensor::scalar(1), "w");
    DistributedDataParallel ddp({w}, {}, half);
    std::int64_t taken = 0;
    const auto backward = [&](const data::Loader& loader, bool sync, bool whole) {
      const data::Batch batch = loader.batch(taken++);
      Tape tape;
      tape.backward(mean(batch.x) * w, whole ? batch.weight : Weight{batch.weight.local},
                    {.sync = sync});
      if (sync) ddp.zero_grad();
    };
    const data::Loader dealt(samples(60), {.batch = 2}, half);
    for (int part = 0; part <= half.rank(); ++part) backward(dealt, false, true);
    backward(dealt, true, true);  // windows of 2 and 3 batches
    backward(dealt, true, true);  // and then of one, which is another one by now
    taken = 0;
    const data::Loader own(samples(40 + world.rank()), {.batch = 2});  // split beforehand
    backward(own, true, false);
  }));
}

TEST_CASE("trap: one rank freezes a parameter, or trains it again") {
  for (const int n : {2, 3, 5})
    for (const int odd : {0, n - 1})
      for (const bool freezes : {true, false}) {
        const auto messages = messages_on_threads(n, [&](World& world) {
          const Parameter a = scalar("a", 2), b = scalar("b", 3);
          DistributedDataParallel ddp({a, b}, {}, world);
          const auto backward = [&] {
            ddp.zero_grad();
            Tape tape;
            tape.backward(a * b);
          };
          backward();
          if (!freezes) b.set_requires_grad(false);  // on all ranks: that is all right
          backward();
          if (world.rank() == odd) b.set_requires_grad(!freezes);
          backward();
        });
        check_all_say(messages, {"did not take the same optimizer steps", "set_requires_grad"});
      }
}

TEST_CASE("ranks that train in threads of their own are compared at the end, too") {
  const auto run = [](bool differs) {
    run_threads(3, {}, [&](World& world) {
      std::thread([&] {
        const World group = *world.split(0);
        const Parameter w = scalar("w", 1);
        DistributedDataParallel ddp({w}, {}, group);
        if (differs && world.rank() == 1) w.value().fill(7);
      }).join();
    });
  };
  run(false);
  CHECK_THROWS_WITH_AS(run(true), doctest::Contains("rank 1 ended with another replica"),
                       StateError);
}
