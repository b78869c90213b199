// Programs whose replicas would differ: mistakes of all ranks, or before the training begins.

#include <doctest/doctest.h>

#include <functional>
#include <type_traits>

#include "lockstep/data/loader.h"
#include "support/small_models.h"
#include "support/worlds.h"
#include "traps/replicas.h"

using namespace lockstep;
using namespace lockstep::test;

TEST_CASE("trap: two DDPs under one optimizer, whose options differ on one rank") {
  const auto messages = messages_on_threads(3, [](World& world) {
    const Parameter a = scalar("a", 1), b = scalar("b", 2);
    DistributedDataParallel first({a}, {}, world), second({b}, {}, world);
    optim::SGD optimizer({a, b}, {.lr = world.rank() == 2 ? 0.2 : 0.1});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      Tape tape;
      tape.backward(step == 0 ? a * b : b * b);  // then only the second learns of the step
      optimizer.step();
    }
  });
  check_all_say(messages, {other_steps});
}

TEST_CASE("trap: an optimizer that was used before DistributedDataParallel") {
  const auto messages = messages_on_threads(3, [](World& world) {
    Net model;
    optim::SGD optimizer(model.parameters(), usual);
    const auto backward = [&](int row) {
      optimizer.zero_grad();
      Tape tape;
      tape.backward(loss_of(model, row, row + 1));
    };
    backward(world.rank());
    optimizer.step(optim::local);
    DistributedDataParallel ddp(model.parameters(), {}, world);
    for (int k = 0; k < 2; ++k) {
      backward(10 * k + world.rank());
      optimizer.step();
    }
  });
  check_all_say(messages, {"the replicas differ: ", "momentum of 'first.weight'"});
}

TEST_CASE("trap: a DDP that has ended, or that was made too early") {
  const auto after = [](const std::function<void(Net&, World&)>& prepare) {
    return messages_on_threads(3, [&](World& world) {
      Net model;
      prepare(model, world);
      optim::SGD optimizer(model.parameters(), usual);
      Tape tape;
      tape.backward(loss_of(model, world.rank(), world.rank() + 1));
      optimizer.step();
    });
  };
  check_all_say(after([](Net& model, World& world) {
                  const DistributedDataParallel ended(model.parameters(), {}, world);
                }),
                {"[step] 'first.weight' is equal on all ranks", "has ended"});
  // Staged unfreezing: what was frozen when DDP was made.
  const auto staged = [](bool managed_too) {
    return messages_on_threads(3, [&](World& world) {
      Net model;
      const auto all = model.parameters();
      for (int i : {0, 1}) all[static_cast<std::size_t>(i)].set_requires_grad(false);
      DistributedDataParallel ddp(all, {}, world);
      for (const Parameter& p : all) p.set_requires_grad(true);
      optim::SGD optimizer({all[0], all[1]}, usual);
      Tape tape;
      tape.backward(managed_too ? loss_of(model, 0, 1) : mean(model.first(rows(0, 1))));
      optimizer.step();
    });
  };
  check_all_say(staged(false), {"[step] 'first.weight' is equal on all ranks", "frozen"});
  check_all_say(staged(true), {"[backward] the loss reaches"});
  // On purpose.
  check_all_well(after([](Net& model, World& world) {
    const DistributedDataParallel ended(model.parameters(), {}, world);
    for (const Parameter& p : model.parameters()) p.keep_local();
  }));
}

TEST_CASE("trap: parameters without a name, and a world that ends at once") {
  const auto messages = messages_on_threads(2, [](World& world) {
    DistributedDataParallel ddp({scalar("a"), scalar("")}, {}, world);
  });
  check_all_say(messages, {"[DistributedDataParallel] parameter 1 has no name"});
  using Parameters = std::vector<Parameter>;
  using Buffers = std::vector<Buffer>;
  static_assert(
      std::is_constructible_v<DistributedDataParallel, Parameters, Buffers, const World&>);
  static_assert(!std::is_constructible_v<DistributedDataParallel, Parameters, Buffers, World>);
  static_assert(!std::is_copy_constructible_v<optim::SGD>);
}

namespace {

/// An optimizer that somebody else has written: sign descent.
class SignDescent : public optim::Optimizer {
 public:
  SignDescent(std::vector<Parameter> parameters, double lr)
      : Optimizer(parameters), parameters_(std::move(parameters)), lr_(lr) {}
  std::vector<StateTensor> state_of(const Parameter&) const override { return {}; }

 private:
  void update() override {
    for (const Parameter& p : parameters_) {
      if (!takes_part(p)) continue;
      for (std::int64_t i = 0; i < p.value().numel(); ++i)
        p.value().data<double>()[i] -= p.gradient().data<double>()[i] > 0 ? lr_ : -lr_;
    }
  }
  std::uint64_t options_digest() const override { return 1; }  // a bad one: lr is not in it

  std::vector<Parameter> parameters_;
  double lr_;
};

}  // namespace

TEST_CASE("trap: an optimizer of one's own, by class or by hand, with another lr on one rank") {
  for (const int odd_rank : {-1, 0, 2})
    for (const bool by_hand : {false, true}) {
      CAPTURE(odd_rank);
      CAPTURE(by_hand);
      const auto messages = messages_on_threads(3, [&](World& world) {
        Net model;
        DistributedDataParallel ddp(model.parameters(), {}, world);
        const double lr = world.rank() == odd_rank ? 0.02 : 0.01;
        SignDescent optimizer(model.parameters(), lr);
        for (int step = 0; step < 3; ++step) {
          ddp.zero_grad();
          Tape tape;
          tape.backward(loss_of(model, 3 * step + world.rank(), 3 * step + world.rank() + 1));
          if (!by_hand) {
            optimizer.step();
            continue;
          }
          for (const Parameter& p : model.parameters())
            for (std::int64_t i = 0; i < p.value().numel(); ++i)
              p.value().data<double>()[i] -= lr * p.gradient().data<double>()[i];
        }
      });
      if (odd_rank < 0)
        check_all_well(messages);
      else
        check_all_say(messages, {differ});
    }
}

TEST_CASE("trap: loaders that deal the data differently") {
  const auto samples = [](std::int64_t n) {
    return data::TensorDataset(
        {{"x", Tensor::full({n, 3}, 0.5)}, {"y", Tensor::zeros({n}, DType::i64)}});
  };
  const data::TensorDataset dataset = samples(24), other_labels = samples(24),
                            smaller = samples(20);
  other_labels["y"].data<std::int64_t>()[7] = 1;
  struct Deal {
    data::LoaderOptions options;
    int epoch = 0;
    const data::TensorDataset* data = nullptr;
    bool whole = false;  // split beforehand
  };
  const auto run = [&](const Deal& usual_deal, const Deal& other) {
    return messages_on_threads(3, [&](World& world) {
      const Parameter w(Tensor::full({3, 2}, 0.1), "w");
      DistributedDataParallel ddp({w}, {}, world);
      const Deal& deal = world.rank() == 1 ? other : usual_deal;
      const Shard shard = deal.whole ? Shard{} : Shard(world);
      for (const data::Batch& batch :
           data::Loader(deal.data ? *deal.data : dataset, deal.options, shard, deal.epoch)) {
        w.zero_grad();
        Tape tape;
        tape.backward(cross_entropy(matmul(batch.x, w), batch.y),
                      deal.whole ? Weight{batch.weight.local} : batch.weight);
      }
    });
  };
  const data::LoaderOptions shuffled = {.batch = 2, .shuffle = true, .seed = 5};
  const auto changed = [&](auto change) {
    Deal deal{shuffled};
    change(deal);
    return deal;
  };
  const std::vector<Deal> others = {
      changed([](Deal& d) { d.options.seed = 6; }),
      changed([](Deal& d) { d.options.shuffle = false; }),
      changed([](Deal& d) { d.options.batch = 4; }),
      changed([](Deal& d) { d.options.padded = true; }),
      changed([](Deal& d) { d.options.padded = d.options.drop_last = true; }),
      changed([](Deal& d) { d.epoch = 1; }),
      changed([&](Deal& d) { d.data = &other_labels; }),
      changed([&](Deal& d) { d.data = &smaller; }),
  };
  for (std::size_t k = 0; k < others.size(); ++k) {
    CAPTURE(k);
    check_all_say(run({shuffled}, others[k]), {"ranks 0 and 1 deal the data differently"});
  }
  check_all_well(run({shuffled}, {shuffled}));
  // Data that was split beforehand may be in any order.
  const Deal own{shuffled, 0, nullptr, true}, others_own{{.batch = 2}, 0, nullptr, true};
  check_all_well(run(own, others_own));
}

TEST_CASE("check_replicas: what it says, and that it is silent about equal replicas") {
  for (const int size : {1, 2, 3, 5}) {
    const auto messages = messages_on_threads(size, [](World& world) {
      Net model;
      DistributedDataParallel ddp(model.parameters(), {}, world, {.check_replicas = false});
      optim::Adam optimizer(model.parameters(), {});
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        Tape tape;
        tape.backward(loss_of(model, world.rank(), world.rank() + 1));
        optimizer.step();
        ddp.check_replicas();
      }
      if (world.rank() == world.size() - 1)
        optimizer.state_of(model.parameters()[0]).at(2).value.data<std::int64_t>()[0] = 9;
      ddp.check_replicas();
    });
    if (size == 1) {
      check_all_well(messages);
    } else {
      check_all_say(messages, {"[check_replicas] the replicas differ: step of 'first.weight'",
                               "9 on rank " + std::to_string(size - 1), "2 on rank"});
    }
  }
}

TEST_CASE("local steps: averaging makes parameters and momentum equal") {
  run_threads(3, {}, [](World& world) {
    Net model;
    DistributedDataParallel ddp(model.parameters(), {}, world);
    optim::SGD optimizer(model.parameters(), usual);
    double mean_momentum = 0;
    const auto local_step = [&](int row) {
      optimizer.zero_grad();
      Tape tape;
      tape.backward(loss_of(model, row, row + 1), {}, {.sync = false});
      optimizer.step(optim::local);
    };
    for (int k = 0; k < 2; ++k) local_step(3 * k + world.rank());
    const Tensor momentum = optimizer.state_of(model.parameters()[0]).at(0).value;
    const Tensor all = Tensor::empty({3}, DType::f64);
    world.communicator().all_gather(momentum.view({12}).slice(4, 5), all, "momentum").wait();
    for (int r = 0; r < 3; ++r) mean_momentum += all.data<double>()[r] / 3;
    optimizer.zero_grad();
    ddp.average_parameters();
    expect(std::abs(momentum.data<double>()[4] - mean_momentum) < 1e-15, "{} instead of {}",
           momentum.data<double>()[4], mean_momentum);
    ddp.check_replicas();
    for (int k = 0; k < 3; ++k) {  // training goes on together
      optimizer.zero_grad();
      Tape tape;
      tape.backward(loss_of(model, 3 * k + world.rank(), 3 * k + world.rank() + 1));
      optimizer.step();
    }
    ddp.check_replicas();
  });
}

TEST_CASE("local steps: a momentum that some ranks do not have begins anew on all") {
  check_all_well(messages_on_threads(3, [](World& world) {
    const Parameter a(Tensor::full({3}, 1, DType::f64), "a"),
        b(Tensor::full({3}, 2, DType::f64), "b");
    DistributedDataParallel ddp({a, b}, {}, world);
    optim::SGD optimizer({a, b}, {.lr = 0.1, .momentum = 0.9});
    const auto backward = [&](bool both, bool local) {
      optimizer.zero_grad();
      Tape tape;
      const Tensor loss = sum(both ? mul(a, b) : mul(a, a));
      tape.backward(loss, {}, {.sync = !local});
    };
    for (int k = 0; k < 2; ++k) {
      backward(world.rank() == 1, true);  // b has a momentum on rank 1 alone
      optimizer.step(optim::local);
    }
    optimizer.zero_grad();
    ddp.average_parameters();
    expect(optimizer.state_of(a).size() == 1, "a's momentum, which all have, is gone");
    expect(optimizer.state_of(b).empty(), "b's momentum is still there");
    ddp.check_replicas();
    for (int k = 0; k < 3; ++k) {
      backward(true, false);
      optimizer.step();
    }
    ddp.check_replicas();
  }));
}

TEST_CASE("two independent optimizers may step in another order on every rank") {
  check_all_well(messages_on_threads(3, [](World& world) {
    Net model;
    DistributedDataParallel ddp(model.parameters(), {}, world);
    const auto all = model.parameters();
    optim::SGD first({all[0], all[1]}, usual);
    optim::Adam second({all[2], all[3]}, {});
    for (int step = 0; step < 4; ++step) {
      ddp.zero_grad();
      Tape tape;
      tape.backward(loss_of(model, 3 * step + world.rank(), 3 * step + world.rank() + 1));
      if ((step + world.rank()) % 2 == 0)
        first.step(), second.step();
      else
        second.step(), first.step();
    }
    ddp.check_replicas();
  }));
}

namespace {
struct EarlyStop {};
}  // namespace

TEST_CASE("trap: what happens after the last backward is found at the end") {
  struct End {
    const char* name;
    std::function<void(Net&, optim::SGD&, bool odd)> act;  // in the place of the last step
    bool found = true;
  };
  const std::vector<End> ends = {
      {"as usual", [](Net&, optim::SGD& o, bool) { o.step(); }, false},
      {"the last step missing",
       [](Net&, optim::SGD& o, bool odd) {
         if (!odd) o.step();
       }},
      {"momentum written after the last step",
       [](Net& m, optim::SGD& o, bool odd) {
         o.step();
         if (odd) o.state_of(m.parameters()[0]).at(0).value.fill(5);
       }},
      {"an early stop by an exception, without the last step",
       [](Net&, optim::SGD& o, bool odd) {
         if (!odd) o.step();
         throw EarlyStop{};
       }},
      {"another lr",
       [](Net&, optim::SGD& o, bool odd) {
         if (odd) o.groups()[0].options.lr = 0.3;
         o.step();
       }},
      {"a write after it",
       [](Net& model, optim::SGD& o, bool odd) {
         o.step();
         if (odd) model.parameters()[3].value().fill(1);
       }},
      {"a state that was loaded",
       [](Net& model, optim::SGD& o, bool odd) {
         o.step();
         Net other;
         if (odd) model.load_state_dict(other.state_dict());
       }},
      {"local steps without averaging",
       [](Net& model, optim::SGD& o, bool odd) {
         o.zero_grad();
         Tape tape;
         tape.backward(loss_of(model, odd, odd + 1), {}, {.sync = false});
         o.step(optim::local);
       }},
  };
  for (const End& end : ends)
    for (const int size : {2, 3, 5}) {
      CAPTURE(end.name);
      CAPTURE(size);
      const auto run = [&] {
        run_threads(size, {}, [&](World& world) {
          try {
            Net model;
            optim::SGD optimizer(model.parameters(), usual);
            DistributedDataParallel ddp(model.parameters(), {}, world);
            for (int step = 0; step < 3; ++step) {
              optimizer.zero_grad();
              Tape tape;
              tape.backward(loss_of(model, 5 * step + world.rank(), 5 * step + world.rank() + 1));
              if (step < 2)
                optimizer.step();
              else
                end.act(model, optimizer, world.rank() == 1);
            }
          } catch (const EarlyStop&) {
          }
        });
      };
      if (end.found)
        CHECK_THROWS_WITH_AS(run(), doctest::Contains("[run_threads] rank"), StateError);
      else
        CHECK_NOTHROW(run());
    }
}
