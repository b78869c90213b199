// What refers to a World, a group or another object, and outlives it: each call says so by one
// error. Nothing reads what has gone.

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>

#include "lockstep/dist/audit/audit.h"
#include "lockstep/dist/collectives/differentiable.h"
#include "lockstep/lockstep.h"
#include "lockstep/nn/optim/schedule.h"
#include "support/expect.h"
#include "support/forked_ranks.h"
#include "support/temporary_folder.h"

namespace lockstep::outlived {

using dist::DistributedDataParallel;
using lockstep::test::expect;
using lockstep::test::expect_error;

namespace {

constexpr const char* ended = "its communicator has ended";

using Calls = std::vector<std::pair<const char*, std::function<void()>>>;

template <class E = StateError>
void expect_all_refused(const char* part, const Calls& calls) {
  for (const auto& [name, call] : calls) try {
      expect_error<E>(part, call);
    } catch (const Error& error) {
      fail<Error>("{}: {}", name, error.what());
    }
}

/// A model with everything that trains it, in a group that ends first.
struct Trained {
  explicit Trained(World& world, bool sharded = false) : group(world.split(0)) {
    model = nn::Sequential{nn::Linear(3, 4), nn::Linear(4, 2)};
    optimizer = std::make_unique<optim::Adam>(model.parameters(), optim::Adam::Options{.lr = 0.1});
    ddp = std::make_unique<DistributedDataParallel>(model.parameters(), model.buffers(), *group);
    if (sharded) optimizer->shard(*ddp);
    backward();
    optimizer->step();
    optimizer->zero_grad();
  }
  void backward() {
    Tape tape;
    tape.backward(sum(model(Tensor::full({2, 3}, 0.5))));
  }

  std::optional<World> group;
  nn::Sequential model;
  std::unique_ptr<optim::Adam> optimizer;
  std::unique_ptr<DistributedDataParallel> ddp;
};

// Keeps Works of every operation, lets their communicator end, and asks for them.
void ask_late(std::vector<dist::Work>& works) {
  const char* const operations[] = {"all_reduce #", "reduce_scatter #", "all_gather #",
                                    "broadcast #", "barrier #"};
  for (std::size_t k = 0; k < works.size(); ++k) {
    const std::string what = operations[k];
    dist::Work& work = works[k];
    expect_error<StateError>("[wait] " + what, [&] { work.wait(); });
    expect_error<StateError>(ended, [&] { work.wait(); });
    expect_error<StateError>("[finish] " + what, [&] { work.finish(); });
    expect_error<StateError>("[progress] " + what, [&] { (void)work.progress(); });
  }
}

std::vector<dist::Work> call_all(dist::Communicator& communicator) {
  const Tensor part = Tensor::zeros({3}), whole = Tensor::zeros({3 * communicator.size()});
  std::vector<dist::Work> works = {
      communicator.all_reduce(whole, "late"), communicator.reduce_scatter(whole, part, "late"),
      communicator.all_gather(part, whole, "late"), communicator.broadcast(whole, 1, "late"),
      communicator.barrier("late")};
  return works;
}

void let_communicators_end(World& world) {
  std::vector<dist::Work> works;
  for (const bool waits : {true, false})
    for (const bool of_layers : {true, false}) {
      {
        const World group = *world.split(0);
        works = call_all(of_layers ? group.layer_communicator() : group.communicator());
        if (waits) works.back().wait();
      }
      ask_late(works);
      const World next = *world.split(0);  // in the place of the one that has ended
      ask_late(works);
      next.communicator().barrier("alive").wait();
    }
}

}  // namespace

TEST_CASE("outlived: a Work after its group or its World, of threads") {
  run_threads(2, {.timeout = dist::Seconds(20)}, let_communicators_end);
  std::vector<dist::Work> kept[2];
  run_threads(2, {}, [&](World& world) {
    kept[world.rank()] = call_all(world.communicator());
    kept[world.rank()].back().wait();
  });
  for (auto& works : kept) ask_late(works);
  dist::Work done;
  done.wait();
  CHECK(done.progress());
}

TEST_CASE("outlived: a Work after its group or its World, of processes") {
  for (const std::string transport : {"shm", "tcp"}) {
    const test::TemporaryFolder folder;
    const std::string rendezvous = "unix:" + folder / "rendezvous";
    test::check_all_well(test::run_processes(2, [&](int rank) {
      test::set_rank_environment(rank, 2, rendezvous);
      std::vector<dist::Work> works;
      {
        World world = World::join({.transport = transport, .timeout = dist::Seconds(20)});
        let_communicators_end(world);
        works = call_all(world.communicator());
        works.back().wait();
      }
      ask_late(works);
    }));
  }
}

TEST_CASE("outlived: a group after its World goes on") {
  const auto use = [](const World& group) {
    const Tensor sum = Tensor::full({1000}, group.rank() + 1);
    group.communicator().all_reduce(sum, "after").wait();
    expect(sum.item({7}) == 3, "the sum is {}", sum.item({7}));
    (void)group.layer_communicator();
    (void)group.split(0);
    const Parameter w(Tensor::full({3}, group.rank()), "w");
    const DistributedDataParallel ddp({w}, {}, group);
  };
  run_threads(2, {.timeout = dist::Seconds(20)}, [&](World& world) {
    std::optional<World> half = world.split(0);
    const World quarter = *half->split(0);
    half.reset();
    use(quarter);
  });
  for (const std::string transport : {"shm", "tcp"}) {
    const test::TemporaryFolder folder;
    const std::string rendezvous = "unix:" + folder / "rendezvous";
    test::check_all_well(test::run_processes(2, [&](int rank) {
      test::set_rank_environment(rank, 2, rendezvous);
      std::optional<World> world =
          World::join({.transport = transport, .timeout = dist::Seconds(20)});
      const World group = *world->split(0);
      world.reset();
      use(group);
    }));
  }
}

TEST_CASE("outlived: a DistributedDataParallel after its World") {
  run_threads(2, {.timeout = dist::Seconds(20)}, [](World& world) {
    Trained trained(world);
    DistributedDataParallel& ddp = *trained.ddp;
    nn::Checkpoint checkpoint(ddp);
    const test::TemporaryFolder folder;
    dist::Audit audit(ddp, {.every = 1});
    trained.group.reset();
    const Calls calls = {
        {"backward", [&] { trained.backward(); }},
        {"step", [&] { trained.optimizer->step(); }},
        {"local step", [&] { trained.optimizer->step(optim::local); }},
        {"synchronize", [&] { ddp.synchronize(); }},
        {"join", [&] { (void)ddp.join(); }},
        {"average_parameters", [&] { ddp.average_parameters(); }},
        {"check_replicas", [&] { ddp.check_replicas(); }},
        {"save_on_rank0", [&] { ddp.save_on_rank0([] {}); }},
        {"no_sync", [&] { const dist::NoSync scope = ddp.no_sync(); }},
        {"communicator", [&] { (void)ddp.communicator(); }},
        {"shard", [&] { trained.optimizer->shard(ddp); }},
        {"checkpoint", [&] { checkpoint.save(folder / "checkpoint"); }},
        {"load", [&] { checkpoint.load(folder / "checkpoint"); }},
        {"audit",
         [&] {
           const data::TensorDataset samples({{"x", Tensor::full({4, 3}, 1)}});
           const data::Loader loader(samples, {.batch = 4, .lanes = 4}, world, 0);
           for (const data::Batch& batch : loader)
             (void)audit.backward(loader, batch, [&](const data::Batch& b) {
               return mean(sum(trained.model(b["x"]), 1));
             });
         }},
    };
    expect_all_refused(ended, calls);
    trained.ddp.reset();  // and so does its end
    trained.optimizer->zero_grad();
    Trained another(world);  // the parameters are free again
  });
}

TEST_CASE("outlived: a sharded optimizer after its World") {
  for (const bool ddp_lives : {true, false})
    run_threads(2, {.timeout = dist::Seconds(20)}, [&](World& world) {
      Trained trained(world, true);
      if (!ddp_lives) trained.ddp.reset();
      trained.group.reset();
      const std::vector<float> before = trained.model.parameters()[0].value().to_vector<float>();
      expect_all_refused(ended, {{"step", [&] { trained.optimizer->step(); }},
                                 {"state_dict", [&] { (void)trained.optimizer->state_dict(); }}});
      expect(trained.model.parameters()[0].value().to_vector<float>() == before,
             "a step that is refused has changed a value");
    });
}

TEST_CASE("outlived: layers and tapes after their World") {
  run_threads(2, {.timeout = dist::Seconds(20)}, [](World& world) {
    std::optional<World> group = world.split(0);
    nn::BatchNorm norm = nn::SyncBatchNorm(3, *group);
    const Parameter w(Tensor::full({3}, 2), "w");
    Tape tape;
    const Tensor loss =
        sum(dist::all_reduce_varying(w * Tensor::ones({3}), group->communicator(), "loss"));
    group.reset();
    expect_error<StateError>("the world with which layer", [&] {
      (void)norm(Tensor::full({4, 3}, 1));
    });
    expect_error<StateError>(ended, [&] { tape.backward(loss); });
  });
}

TEST_CASE("outlived: what refers to a DistributedDataParallel, after it") {
  run_threads(2, {.timeout = dist::Seconds(20)}, [](World& world) {
    Trained trained(world);
    nn::Checkpoint checkpoint(*trained.ddp);
    dist::Audit audit(*trained.ddp, {.every = 1});
    const std::unique_ptr<dist::NoSync> scope(new dist::NoSync(trained.ddp->no_sync()));
    trained.ddp.reset();
    const test::TemporaryFolder folder;
    expect_error<StateError>("its DistributedDataParallel has ended",
                             [&] { checkpoint.save(folder / "checkpoint"); });
    const data::TensorDataset samples({{"x", Tensor::full({4, 3}, 1)}});
    const data::Loader loader(samples, {.batch = 4, .lanes = 4}, world, 0);
    for (const data::Batch& batch : loader)
      expect_error<StateError>("under no DistributedDataParallel any more", [&] {
        (void)audit.backward(loader, batch,
                             [&](const data::Batch& b) { return sum(trained.model(b["x"])); });
      });
  });
}

TEST_CASE("outlived: what refers to an optimizer, after it") {
  run_threads(2, {.timeout = dist::Seconds(20)}, [](World& world) {
    Trained trained(world);
    optim::Schedule schedule(*trained.optimizer, [](std::int64_t) { return 0.5; });
    optim::Plateau plateau(*trained.optimizer, {.patience = 0});
    const nn::StateDict state = schedule.state_dict();
    trained.optimizer.reset();
    expect_all_refused("its optimizer has ended",
                       {{"schedule", [&] { schedule.step(); }},
                        {"its state", [&] { schedule.load_state_dict(state); }},
                        {"plateau", [&] { plateau.step(1); }}});
  });
}

TEST_CASE("outlived: a trace after its communicator") {
  const test::TemporaryFolder folder;
  run_threads(2, {.timeout = dist::Seconds(20)}, [&](World& world) {
    std::optional<World> group = world.split(0);
    dist::Trace trace(group->communicator(), folder / "traces");
    group.reset();
    const Tensor x = sum(Tensor::full({4}, 1));  // is noted
    trace.write();
    expect(x.item() == 4, "{}", x.item());
  });
}

TEST_CASE(
    "outlived: a sharded optimizer after its DistributedDataParallel, on any number of ranks") {
  for (const int ranks : {1, 2})
    for (const bool keep_local : {false, true})
      run_threads(ranks, {.timeout = dist::Seconds(20)}, [&](World& world) {
        Trained trained(world, true);
        trained.ddp.reset();
        if (keep_local)
          for (const Parameter& parameter : trained.model.parameters()) parameter.keep_local();
        const auto values = [&] { return trained.model.state_dict().at("0.weight").clone(); };
        const std::vector<float> before = values().to_vector<float>();
        trained.backward();
        expect_all_refused("DistributedDataParallel",
                           {{"step", [&] { trained.optimizer->step(); }}});
        expect_all_refused<UsageError>("sharded optimizer",
                                       {{"local", [&] { trained.optimizer->step(optim::local); }}});
        expect(values().to_vector<float>() == before, "a refused step has changed a value");
      });
}

}  // namespace lockstep::outlived
