// Parameters that are frozen (set_requires_grad(false)) when DistributedDataParallel is made: they
// take part in nothing, and nobody takes them for a mistake. One that is unfrozen later is refused.

#include <doctest/doctest.h>

#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// A model with a frozen first layer, as it is fine-tuned.
struct FineTuned {
  explicit FineTuned(World& world) : ddp(frozen(model), model.buffers(), world) {}
  static std::vector<Parameter> frozen(Net& model) {
    for (const Parameter& parameter : model.first.parameters()) parameter.set_requires_grad(false);
    return model.parameters();
  }
  void backward(World& world) {
    Tape tape;
    tape.backward(loss_of(model, world.rank() * 4, world.rank() * 4 + 4));
  }
  Net model;
  dist::DistributedDataParallel ddp;
};

}  // namespace

TEST_CASE("frozen: the whole model is clipped, stepped, sharded, averaged and saved") {
  for (const bool sharded : {false, true})
    for (const int ranks : {1, 2}) {
      CAPTURE(sharded);
      std::string digest;
      check_all_well(messages_on_threads(ranks, [&](World& world) {
        FineTuned job(world);
        optim::Adam optimizer(job.model.parameters(), {.lr = 0.01});
        optim::Ema ema(job.model.parameters(), 0.9);
        const Tensor before = job.model.first.weight.value().clone();
        if (sharded) optimizer.shard(job.ddp);
        for (int step = 0; step < 3; ++step) {
          job.backward(world);
          (void)optim::clip_grad_norm(job.model.parameters(), 1);
          optim::clip_grad_value(job.model.parameters(), 0.5);
          optimizer.step();
          optimizer.zero_grad();
          ema.update();
        }
        (void)optimizer.state_dict();
        job.ddp.check_replicas();
        expect(allclose(job.model.first.weight.value(), before, 0, 0), "a frozen one has moved");
      }));
    }
}

TEST_CASE("frozen: a gradient that is there all the same counts in the norm") {
  Net model;
  Tape tape;
  tape.backward(loss_of(model, 0, 4));
  const double whole = optim::clip_grad_norm(model.parameters(), 1e6).item();
  model.first.weight.set_requires_grad(false);
  CHECK(optim::clip_grad_norm(model.parameters(), 1e6).item() == whole);
}

TEST_CASE("frozen: what no DistributedDataParallel knows of is still refused beside others") {
  check_all_say(messages_on_threads(2,
                                    [](World& world) {
                                      FineTuned job(world);
                                      Net other;
                                      for (const Parameter& p : other.parameters())
                                        p.set_requires_grad(false);
                                      std::vector<Parameter> all = job.model.parameters();
                                      all.push_back(other.first.weight);
                                      optim::SGD optimizer(all, {.lr = 1});
                                      optimizer.shard(job.ddp);
                                    }),
                {"[shard] 'first.weight' is not under the DistributedDataParallel"});
}

TEST_CASE("unfreezing after DistributedDataParallel is refused by name, on all ranks") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    check_all_say(messages_on_threads(ranks,
                                      [](World& world) {
                                        FineTuned job(world);
                                        job.backward(world);
                                        job.model.first.weight.set_requires_grad(true);
                                        job.backward(world);
                                      }),
                  {"'first.weight', which is not", "unfrozen (set_requires_grad)"});
  }
  // On one rank alone: it says so, and the others learn it.
  const auto one = messages_on_threads(3, [](World& world) {
    FineTuned job(world);
    if (world.rank() == 1) job.model.first.weight.set_requires_grad(true);
    job.backward(world);
  });
  check_all_say(one, {"'first.weight', which is not"});
}

TEST_CASE("unfreezing all that was frozen, where nothing else trains, is refused at the step") {
  check_all_say(messages_on_threads(2,
                                    [](World& world) {
                                      Net model;
                                      for (const Parameter& p : model.parameters())
                                        p.set_requires_grad(false);
                                      dist::DistributedDataParallel ddp(model.parameters(), {},
                                                                        world);
                                      for (const Parameter& p : model.parameters())
                                        p.set_requires_grad(true);
                                      optim::SGD optimizer(model.parameters(), {.lr = 1});
                                      Tape tape;
                                      tape.backward(loss_of(model, 0, 4));
                                      optimizer.step();
                                    }),
                {"'first.", "was made while it was frozen (set_requires_grad)"});
}
