// What optimizers keep: how much of it there is, under which names and types, what of it a rank
// holds once it is sharded, and that no step is taken which the ranks do not compare.

#include <doctest/doctest.h>

#include <memory>

#include "lockstep/core/memory.h"
#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/worlds.h"

using namespace lockstep;
using lockstep::test::expect;
using lockstep::test::expect_error;

namespace kept_by_optimizers {

using Parameters = std::vector<Parameter>;

Parameters parameters_of(const std::vector<std::int64_t>& sizes, DType dtype = DType::f32) {
  Parameters all;
  for (const std::int64_t size : sizes)
    all.emplace_back(Tensor::full({size}, 1 + static_cast<double>(all.size()), dtype),
                     fmt::format("p{}", all.size()));
  return all;
}

void give_gradients(const Parameters& all, double factor = 1) {
  Tape tape;
  Tensor loss = Tensor::scalar(0, all[0].value().dtype());
  for (const Parameter& p : all) loss = loss + sum(p * p) * factor;
  tape.backward(loss);
}

/// After a step: `tensors` of each parameter's size, and a count of steps if `counts`.
template <class O>
void check_bytes(const typename O::Options& options, std::size_t tensors, bool counts) {
  const Parameters all = parameters_of({3, 17});
  O optimizer(all, options);
  give_gradients(all);
  optimizer.step();
  CHECK(optimizer.state_bytes() == tensors * 20 * sizeof(float) + (counts ? 2 * 8 : 0));
  std::size_t listed = 0;
  for (const Parameter& p : all)
    for (const StateTensor& state : optimizer.state_of(p)) listed += state.value.bytes();
  CHECK(listed == optimizer.state_bytes());
}

TEST_CASE("kept: the bytes of all that an optimizer keeps, of every rule") {
  check_bytes<optim::SGD>({.lr = 0.1}, 0, false);
  check_bytes<optim::SGD>({.lr = 0.1, .momentum = 0.5}, 1, false);
  check_bytes<optim::Adam>({}, 2, true);
  check_bytes<optim::Adam>({.amsgrad = true}, 3, true);
  check_bytes<optim::AdamW>({}, 2, true);
  check_bytes<optim::RMSprop>({}, 1, false);
  check_bytes<optim::RMSprop>({.momentum = 0.5, .centered = true}, 3, false);
  check_bytes<optim::Lion>({}, 1, false);
}

TEST_CASE("kept: of what it kept before it was sharded a rank holds its part alone") {
  constexpr int ranks = 4;
  run_threads(ranks, {}, [](World& world) {
    const auto live = [&] {  // of all ranks, which are threads
      world.communicator().barrier("all are here").wait();
      const auto bytes = static_cast<double>(memory::statistics().live_bytes);
      world.communicator().barrier("all have looked").wait();
      return bytes;
    };
    const Parameters all = parameters_of({60'000, 40'000});
    dist::DistributedDataParallel ddp(all, {}, world);
    const double before = live();
    optim::Adam optimizer(all, {});
    const double whole = live() - before;
    expect(whole >= ranks * 2 * 400'000.0, "{} bytes", whole);
    optimizer.shard(ddp);
    const double parts = live() - before;
    expect(parts < 1.2 * whole / ranks, "{} of {} bytes", parts, whole);
  });
}

TEST_CASE("kept: whichever gradient one rank changes, sharded steps find it in as many steps") {
  for (const std::size_t target : {0, 1, 2, 3})
    for (const int size : {2, 3}) {
      std::vector<int> steps(dist::index(size));
      const auto messages = test::messages_on_threads(size, [&](World& world) {
        const Parameters all = parameters_of({3, 5, 1, 40});
        dist::DistributedDataParallel ddp(all, {}, world);
        optim::SGD optimizer(all, {.lr = 0.01, .momentum = 0.5});
        optimizer.shard(ddp);
        for (int& step = steps[dist::index(world.rank())]; step < 10; ++step) {
          optimizer.zero_grad();
          give_gradients(all);
          if (world.rank() == size - 1) all[target].gradient_slot().data<float>()[0] += 1;
          optimizer.step();
        }
      });
      test::check_all_say(messages, {"the gradient of a sharded one"});
      for (const int step : steps) CHECK(step <= 5);  // four parameters, and one backward
    }
}

TEST_CASE("kept: ranks that would shard other parameters, or in another order, are told") {
  for (const bool order : {false, true}) {
    const auto messages = test::messages_on_threads(3, [&](World& world) {
      const Parameters all = parameters_of({4, 4, 4});
      dist::DistributedDataParallel ddp(all, {}, world);
      Parameters mine = all;
      if (world.rank() == 1) order ? std::swap(mine[0], mine[2]) : mine.pop_back();
      optim::SGD optimizer(mine, {.lr = 0.1});
      optimizer.shard(ddp);
    });
    test::check_all_say(messages, {"[shard] the ranks differ", "rank 1 is in the minority"});
  }
}

TEST_CASE("kept: when a sharded optimizer has ended, values have memory of their own again") {
  run_threads(3, {}, [](World& world) {
    const Parameters all = parameters_of({4, 7, 33});
    dist::DistributedDataParallel ddp(all, {}, world);
    for (int turn = 0; turn < 3; ++turn) {
      optim::SGD optimizer(all, {.lr = 0.1});
      optimizer.shard(ddp);
      optimizer.zero_grad();
      give_gradients(all, 0.25);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const Parameter& p : all) expect(p.value().storage().unique(), "it is shared");
    const double factor = 0.95 * 0.95 * 0.95;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double right = factor * static_cast<double>(i + 1);
      expect(std::abs(all[i].value().item({0}) - right) < 1e-5, "{}", all[i].value().item({0}));
    }
  });
}

TEST_CASE("kept: a sharded step is a write to every value, on ranks too that own none of it") {
  for (const int size : {1, 2, 5})
    run_threads(size, {}, [](World& world) {
      const Parameters all = parameters_of({1, 90, 3});
      dist::DistributedDataParallel ddp(all, {}, world);
      optim::SGD optimizer(all, {.lr = 0.1, .momentum = 0.5});
      optimizer.shard(ddp);
      give_gradients(all);
      std::vector<std::uint32_t> before;
      for (const Parameter& p : all) before.push_back(p.value().storage().version());
      optimizer.step();
      for (std::size_t i = 0; i < all.size(); ++i)
        expect(all[i].value().storage().version() != before[i], "'p{}' seems unchanged", i);
    });
}

/// An optimizer that somebody else has written, which leaves its prints to the class.
struct Own final : optim::Optimizer {
  explicit Own(const Parameters& parameters) : Optimizer(parameters) {}
  std::vector<StateTensor> state_of(const Parameter&) const override { return {}; }
  void update() override {
    for (const Parameter& p : all())
      if (takes_part(p)) p.value().data<float>()[0] -= 0.125F + (&p - all().data() == odd);
  }
  std::uint64_t options_digest() const override { return 1; }
  std::ptrdiff_t odd = -1;
};

TEST_CASE("kept: each step of an optimizer of one's own is compared, of every parameter") {
  for (const int at : {0, 1, 4})
    for (const std::ptrdiff_t odd : {0, 2, 5}) {
      std::vector<int> backwards(3);
      const auto messages = test::messages_on_threads(3, [&](World& world) {
        const Parameters all = parameters_of({2, 2, 2, 2, 2, 2});
        dist::DistributedDataParallel ddp(all, {}, world);
        Own optimizer(all);
        for (int step = 0; step < 12; ++step) {
          optimizer.zero_grad();
          give_gradients(all);
          backwards[dist::index(world.rank())] = step;
          optimizer.odd = step == at && world.rank() == 1 ? odd : -1;
          optimizer.step();
        }
      });
      test::check_all_say(messages, {fmt::format("the replicas differ: 'p{}'", odd)});
      for (const int last : backwards) CHECK(last <= at + 1);
    }
}

TEST_CASE("kept: a state needs names that tell parameters apart") {
  const auto refused = [](const std::vector<const char*>& names, const char* text) {
    Parameters all;
    for (const char* name : names) all.emplace_back(Tensor::zeros({2}), name);
    const optim::Adam adam(all, {});
    CHECK_THROWS_WITH_AS((void)adam.state_dict(), doctest::Contains(text), StateError);
  };
  refused({"a", "a"}, "two parameters are named 'a'");
  refused({"a", "b", "a"}, "two parameters are named 'a'");
  refused({"a", ""}, "set_name()");
}

TEST_CASE("kept: every entry of a state has its type, its shape, and is there") {
  const Parameters all = parameters_of({3, 4});
  optim::Adam adam(all, {.amsgrad = true});
  give_gradients(all);
  adam.step();
  adam.zero_grad();
  const nn::StateDict good = adam.state_dict();
  CHECK(good.size() == 8 + 2 * (1 + 3 + 1));  // options; the group, three tensors and the count
  for (const auto& [name, tensor] : good) {
    CAPTURE(name);
    const std::string which = name;
    nn::StateDict bad = good;
    bad.at(name) = cast(tensor, tensor.dtype() == DType::f64 ? DType::f32 : DType::f64).detach();
    if (tensor.dtype() == DType::i64) bad.at(name) = Tensor::zeros(tensor.shape(), DType::f64);
    CHECK_THROWS_WITH_AS(adam.load_state_dict(bad), doctest::Contains(which.c_str()), DTypeError);
    bad.at(name) = Tensor::zeros({5, 1}, tensor.dtype());
    CHECK_THROWS_WITH_AS(adam.load_state_dict(bad), doctest::Contains(which.c_str()), ShapeError);
    bad.erase(name);
    CHECK_THROWS_WITH_AS(adam.load_state_dict(bad), doctest::Contains(which.c_str()), StateError);
  }
  nn::StateDict more = good;
  more["p0.more"] = Tensor::zeros({3});
  CHECK_THROWS_WITH_AS(adam.load_state_dict(more), doctest::Contains("p0.more"), StateError);
  for (const auto& [name, tensor] : adam.state_dict())
    CHECK(nn::sha256_of(tensor) == nn::sha256_of(good.at(name)));
}

TEST_CASE(
    "kept: an average that stands in for a value is stepped by no optimizer, without DDP too") {
  const Parameters all = parameters_of({3});
  optim::Ema ema(all, 0.5);
  optim::SGD optimizer(all, {.lr = 0.1});
  give_gradients(all);
  {
    const optim::Ema::Applied applied(ema);
    CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("holds an average"), StateError);
    CHECK_THROWS_WITH_AS(optimizer.step(optim::local), doctest::Contains("holds an average"),
                         StateError);
  }
  optimizer.step();
}

TEST_CASE("kept: of every parameter of every group its own state is seen, and forgotten") {
  const Parameters all = parameters_of({2, 3, 4, 5, 6, 7});
  optim::SGD sgd(
      std::vector<optim::Group<optim::SGD::Given>>{{{all[0]}, {}},
                                                   {{all[1], all[2], all[3]}, {.lr = 0.01}},
                                                   {{all[4], all[5]}, {.momentum = 0.25}}},
      {.lr = 0.1, .momentum = 0.5});
  for (int step = 0; step < 2; ++step) {
    sgd.zero_grad();
    give_gradients(all);
    sgd.step();
  }
  const auto momentum = [&](std::size_t i) {
    const auto state = sgd.state_of(all[i]);
    REQUIRE(state.size() == 1);
    CHECK(state[0].value.shape() == all[i].value().shape());
    return state[0].value.item({0});
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double begin = static_cast<double>(i) + 1, lr = i > 0 && i < 4 ? 0.01 : 0.1;
    const double first = 2 * begin, share = i > 3 ? 0.25 : 0.5;
    CHECK(momentum(i) == doctest::Approx(share * first + 2 * (begin - lr * first)));
  }
  for (std::size_t gone = 0; gone < all.size(); ++gone) {
    sgd.forget(all[gone]);
    CHECK(sgd.state_of(all[gone]).empty());  // the next gradient begins it
    for (std::size_t i = gone + 1; i < all.size(); ++i) CHECK(momentum(i) != 0);
  }
}

}  // namespace kept_by_optimizers
