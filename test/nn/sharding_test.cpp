// A sharded optimizer (ZeRO, stage 1) has the bits of the plain one, and its share of the state.

#include "lockstep/nn/optim/sharding.h"

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <numeric>

#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::expect;
using lockstep::test::expect_error;
using lockstep::test::TemporaryFolder;

namespace {

using Parameters = std::vector<Parameter>;
using MakeSharded = std::function<std::unique_ptr<optim::Optimizer>(const Parameters&)>;

template <class O>
MakeSharded with(typename O::Options options) {
  return
      [options](const Parameters& parameters) { return std::make_unique<O>(parameters, options); };
}

const std::vector<std::pair<const char*, MakeSharded>>& shardable() {
  static const std::vector<std::pair<const char*, MakeSharded>> all = {
      {"SGD", with<optim::SGD>({.lr = 0.05})},
      {"SGD with momentum", with<optim::SGD>({.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01})},
      {"Nesterov", with<optim::SGD>({.lr = 0.05, .momentum = 0.9, .nesterov = true})},
      {"Adam", with<optim::Adam>({.lr = 0.01})},
      {"AdamW, AMSGrad", with<optim::AdamW>({.lr = 0.01, .amsgrad = true})},
      {"RMSprop", with<optim::RMSprop>({.lr = 0.01, .momentum = 0.5, .centered = true})},
      {"Lion", with<optim::Lion>({.lr = 0.001})},
      {"two groups",
       [](const Parameters& all) {
         return std::make_unique<optim::Adam>(std::vector<optim::Group<optim::Adam::Given>>{
             {{all.begin(), all.begin() + 2}, {.lr = 0.02}},
             {{all.begin() + 2, all.end()}, {.lr = 0.005, .weight_decay = 0.1}}});
       }},
  };
  return all;
}

/// What a step of the test does besides.
struct Extras {
  bool clip = false;
  bool accumulate = false;     // two backwards per step
  bool last_has_none = false;  // the last rank has no data
  bool leave_out = false;      // every other step does not reach the last parameter
};

/// Parameters of 1, 3, odd and larger sizes, one of them f64, on this rank.
struct ShardedRun {
  ShardedRun(World& world, const MakeSharded& make, bool sharded, Extras extras = {})
      : world(world), extras(extras) {
    Generator draw(7);
    int i = 0;
    for (const std::int64_t numel : {1, 3, 65, 500, 17, 0, 129}) {
      const DType dtype = i == 4 ? DType::f64 : DType::f32;
      Tensor value = Tensor::empty({numel}, dtype);
      draw.normal(value);
      all.emplace_back(numel == 500 ? value.view({20, 25}) : value, fmt::format("p{}", i++));
    }
    optimizer = make(all);
    ddp.emplace(all, std::vector<Buffer>{}, world);
    if (sharded) optimizer->shard(*ddp);
  }

  void backward(int step, bool sync) {
    const bool none = extras.last_has_none && world.rank() == world.size() - 1 && world.size() > 1;
    Tape tape;
    Tensor loss = Tensor::scalar(0);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (extras.leave_out && step % 2 == 0 && i + 1 == all.size()) continue;
      const Tensor x = all[i];
      const Tensor term = sum(sin(x * (1.0 + 0.1 * world.rank()) + 0.3 * step));
      loss = loss + cast(term, DType::f32);
    }
    tape.backward(none ? loss * 0.0 : loss, Weight{none ? 0.0 : 1.0 + world.rank()},
                  {.sync = sync});
  }

  void step(int i) {
    optimizer->zero_grad();
    if (extras.accumulate) backward(100 + i, false);
    backward(i, true);
    if (extras.clip) {
      optim::clip_grad_norm(all, 0.5);
      optim::clip_grad_value(all, 0.1);
    }
    optimizer->step();
  }

  World& world;
  Extras extras;
  Parameters all;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::optional<dist::DistributedDataParallel> ddp;
};

/// The digest of all parameters after each of `steps` steps, with the optimizer's state at the end.
std::vector<std::string> digests(int ranks, const MakeSharded& make, bool sharded, Extras extras,
                                 int steps = 12) {
  std::vector<std::string> result;
  run_threads(ranks, {}, [&](World& world) {
    ShardedRun run(world, make, sharded, extras);
    std::vector<std::string> mine;
    for (int i = 0; i < steps; ++i) {
      run.step(i);
      mine.push_back(parameter_digest(run.all));
    }
    run.ddp->check_replicas();
    std::vector<Parameter> state;
    for (const auto& [name, tensor] : run.optimizer->state_dict()) {
      mine.push_back(fmt::format("{} {} {}", name, tensor.shape(), tensor.dtype()));
      if (is_differentiable(tensor.dtype()))
        state.emplace_back(tensor, name);
      else
        mine.push_back(fmt::format("{}", tensor.item()));
    }
    mine.push_back(parameter_digest(state));
    if (world.rank() == world.size() - 1) result = mine;
  });
  return result;
}

}  // namespace

TEST_SUITE_BEGIN("not-cpu not-late");  // the same shares, whatever computes

TEST_CASE("sharded: a flat plan has every element once, aligned, in equal parts") {
  Generator draw(3);
  for (int round = 0; round < 200; ++round) {
    Tensor drawn = Tensor::empty({1 + round % 9});
    draw.uniform(drawn, 0, 200);
    std::vector<std::int64_t> sizes;
    for (const float size : drawn.to_vector<float>())
      sizes.push_back(static_cast<std::int64_t>(size) * (round % 5 == 0 ? 0 : 1));
    const int ranks = 1 + round % 7;
    const optim::FlatPlan plan = optim::flat_plan(sizes, ranks);
    std::int64_t end = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CHECK(plan.begins[i] % 16 == 0);
      CHECK(plan.begins[i] >= end);
      CHECK(plan.begins[i] < end + 16);
      end = plan.begins[i] + sizes[i];
    }
    CHECK(plan.numel % (16 * ranks) == 0);
    CHECK(plan.numel >= end);
    CHECK(plan.numel < end + 16 + 16 * ranks);
  }
}

TEST_CASE("sharded: the bits of the plain optimizer, whatever it is") {
  for (const auto& [name, make] : shardable())
    for (const int ranks : {1, 2, 3, 4, 7}) {
      CAPTURE(name);
      CAPTURE(ranks);
      CHECK(digests(ranks, make, true, {}) == digests(ranks, make, false, {}));
    }
}

TEST_CASE("sharded: the bits of the plain optimizer, whatever happens to the gradients") {
  const MakeSharded& make = shardable()[4].second;
  for (const Extras& extras : {Extras{.clip = true}, Extras{.accumulate = true},
                               Extras{.last_has_none = true}, Extras{.leave_out = true}})
    for (const int ranks : {2, 3}) {
      CAPTURE(ranks);
      CHECK(digests(ranks, make, true, extras) == digests(ranks, make, false, extras));
    }
}

TEST_CASE("sharded: a rank keeps its share of the state, and no more") {
  for (const int ranks : {2, 3, 4, 7}) {
    CAPTURE(ranks);
    std::vector<double> shares(static_cast<std::size_t>(ranks));
    run_threads(ranks, {}, [&](World& world) {
      manual_seed(1);
      nn::Sequential model{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10)};
      optim::Adam optimizer(model.parameters(), {.lr = 0.01});
      const dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
      const auto plain = static_cast<double>(optimizer.state_bytes());
      optimizer.shard(const_cast<dist::DistributedDataParallel&>(ddp));
      shares[static_cast<std::size_t>(world.rank())] =
          static_cast<double>(optimizer.state_bytes()) / plain;
    });
    for (const double share : shares) CHECK(share < 1.05 / ranks);
    // The counts of steps are kept by all.
    CHECK(std::accumulate(shares.begin(), shares.end(), 0.0) == doctest::Approx(1).epsilon(0.01));
  }
}

TEST_CASE("sharded: one may begin after some steps, and end before the last") {
  const auto plain = digests(3, shardable()[3].second, false, {}, 9);
  run_threads(3, {}, [&](World& world) {
    ShardedRun run(world, shardable()[3].second, false);
    for (int i = 0; i < 4; ++i) run.step(i);
    run.optimizer->shard(*run.ddp);
    for (int i = 4; i < 9; ++i) run.step(i);
    expect(parameter_digest(run.all) == plain[8], "the bits");
    const nn::StateDict state = run.optimizer->state_dict();
    const std::string before = parameter_digest(run.all);
    run.optimizer = shardable()[3].second(run.all);  // the values have memory of their own again
    run.optimizer->load_state_dict(state);
    expect(parameter_digest(run.all) == before, "the values survive");
    run.step(9);
  });
}

TEST_CASE("sharded: a checkpoint goes on with the same bits, sharded or not, on other ranks") {
  const TemporaryFolder folder;
  const std::string path = folder / "run.safetensors";
  const MakeSharded& make = shardable()[1].second;
  const auto save = [&](int ranks, bool sharded) {
    std::string digest;
    run_threads(ranks, {}, [&](World& world) {
      ShardedRun run(world, make, sharded);
      nn::Checkpoint checkpoint(*run.ddp);
      checkpoint.add("optimizer", *run.optimizer);
      for (int i = 0; i < 3; ++i) run.step(i);
      checkpoint.save(path);
      for (int i = 3; i < 6; ++i) run.step(i);
      if (world.rank() == 0) digest = parameter_digest(run.all);
    });
    return digest;
  };
  const auto resume = [&](int ranks, bool sharded) {
    std::string digest;
    run_threads(ranks, {}, [&](World& world) {
      ShardedRun run(world, make, sharded);
      for (int i = 0; i < 3; ++i) run.step(i);  // the values that were saved beside the state
      run.optimizer->forget(run.all[0]);
      nn::Checkpoint checkpoint(*run.ddp);
      checkpoint.add("optimizer", *run.optimizer);
      checkpoint.load(path);
      for (int i = 3; i < 6; ++i) run.step(i);
      if (world.rank() == 0) digest = parameter_digest(run.all);
    });
    return digest;
  };
  for (const int ranks : {2, 3})
    for (const bool from : {false, true}) {
      const std::string expected = save(ranks, from);
      for (const bool to : {false, true}) CHECK(resume(ranks, to) == expected);
    }
  const auto state_of = [&](int ranks, bool sharded) {
    std::string digest;
    run_threads(ranks, {}, [&](World& world) {
      ShardedRun run(world, make, sharded);
      nn::Checkpoint checkpoint(*run.ddp);
      checkpoint.add("optimizer", *run.optimizer);
      checkpoint.load(path);
      std::vector<Parameter> state;
      for (const auto& [name, tensor] : run.optimizer->state_dict())
        if (is_differentiable(tensor.dtype())) state.emplace_back(tensor, name);
      if (world.rank() == 0) digest = parameter_digest(state);
    });
    return digest;
  };
  save(4, true);
  const std::string saved = state_of(4, true);
  for (const int ranks : {1, 2, 3})
    for (const bool sharded : {false, true}) CHECK(state_of(ranks, sharded) == saved);
}

TEST_CASE("sharded: what does not go together is refused by name") {
  const MakeSharded& make = shardable()[3].second;
  run_threads(2, {}, [&](World& world) {
    ShardedRun run(world, make, true);
    run.step(0);
    expect_error<StateError>("sharded already", [&] { run.optimizer->shard(*run.ddp); });
    expect_error<UsageError>("no steps on local", [&] { run.optimizer->step(optim::local); });
    const Parameter more(Tensor::ones({2}), "more");
    auto& adam = dynamic_cast<optim::Adam&>(*run.optimizer);
    expect_error<StateError>("is sharded", [&] { adam.add_param_group({more}, {}); });
    nn::StateDict state = run.optimizer->state_dict();
    state["p2.mean"] = Tensor::zeros({64});
    expect_error<ShapeError>("'p2.mean' is (65,), and (64,)",
                             [&] { run.optimizer->load_state_dict(state); });
  });
  run_threads(2, {}, [&](World& world) {
    ShardedRun run(world, make, false);
    const Tensor held = run.all[2].value();
    expect_error<StateError>("else holds the elements of 'p2'",
                             [&] { run.optimizer->shard(*run.ddp); });
    run.step(0);  // as if nothing had happened
  });
  run_threads(2, {}, [&](World& world) {
    ShardedRun run(world, make, false);
    const Parameter other(Tensor::ones({2}), "other");
    optim::SGD outside({run.all[0], other}, {.lr = 0.1});
    expect_error<StateError>("'other' is not under", [&] { outside.shard(*run.ddp); });
  });
}

TEST_CASE("sharded: what one rank alone does to gradients is found, what it does to values heals") {
  const MakeSharded& make = shardable()[1].second;
  run_threads(3, {}, [&](World& world) {
    ShardedRun run(world, make, true);
    expect_error<StateError>("the gradient of a sharded one", [&] {
      for (int i = 0; i < 16; ++i) {
        run.optimizer->zero_grad();
        run.backward(i, true);
        if (world.rank() == 1) optim::clip_grad_norm(run.all, 0.5);
        run.optimizer->step();
      }
    });
  });
  const auto plain = digests(2, make, false, {}, 1);
  run_threads(2, {}, [&](World& world) {
    ShardedRun run(world, make, true);
    run.optimizer->zero_grad();
    run.backward(0, true);
    if (world.rank() == 1) run.all[0].value().fill(1e6);  // rank 0 steps it
    run.optimizer->step();
    expect(parameter_digest(run.all) == plain[0], "healed");
  });
}

TEST_SUITE_END();
