// Programs without a mistake, drawn at random: the proof that replicas are equal raises no false
// alarm, and the replicas are equal in the end.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>

#include "dist/ddp/halves_hook.h"
#include "lockstep/dist/ddp/hooks/communication_hook.h"
#include "lockstep/nn/optim/clip.h"
#include "support/drill.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// What a program does; the same on all ranks.
struct Program {
  explicit Program(std::uint64_t seed) : random(seed) {
    size = 1 + below(5);
    groups = size > 2 && chance(4);
    adam = chance(2);
    two_optimizers = chance(3);
    frozen = chance(3) ? 1 + below(2) : 0;
    hook = chance(4);
    skip = chance(4);
    join = !hook && chance(4);
    caps = chance(2) ? 1e-4 : 25;
    const char* const names[] = {"auto", "ring", "direct", "one-shot", "halving"};
    comm = names[below(5)];
    steps = 3 + below(4);
    for (int k = 0; k < 40; ++k) draws.push_back(random());
  }

  int below(std::uint64_t n) { return static_cast<int>(random() % n); }
  bool chance(int n) { return below(static_cast<std::uint64_t>(n)) == 0; }
  std::uint64_t draw(int step, std::uint64_t n) const {
    return draws[static_cast<std::size_t>(step) % draws.size()] % n;
  }

  std::mt19937_64 random;
  int size, steps;
  bool groups, adam, two_optimizers, hook, skip, join;
  int frozen;
  double caps;
  std::string comm;
  std::vector<std::uint64_t> draws;
};

std::unique_ptr<optim::Optimizer> optimizer_of(std::vector<Parameter> some, bool adam) {
  if (adam) return std::make_unique<optim::Adam>(std::move(some), optim::AdamOptions{.lr = 0.01});
  return std::make_unique<optim::SGD>(std::move(some),
                                      optim::SGD::Options{.lr = 0.05, .momentum = 0.9});
}

class Trainer {
 public:
  Trainer(const Program& program, World& world) : program_(program), world_(world) {
    const auto all = model_.parameters();
    for (int i = 0; i < program.frozen; ++i)
      all[static_cast<std::size_t>(i)].set_requires_grad(false);
    dist::DdpOptions options{.bucket_cap_mb = program.caps, .first_bucket_mb = program.caps};
    if (program.skip) options.nonfinite = dist::NonFinite::skip;
    if (program.hook) options.hook = std::make_shared<HalvesHook>();
    ddp_.emplace(all, model_.buffers(), world, options);
    const std::vector<Parameter> front(all.begin(), all.begin() + 2),
        back(all.begin() + 2, all.end());
    if (program.two_optimizers) {
      optimizers_.push_back(optimizer_of(front, program.adam));
      optimizers_.push_back(optimizer_of(back, !program.adam));
    } else {
      optimizers_.push_back(optimizer_of(all, program.adam));
    }
  }

  void run() {
    const int mine = program_.join ? program_.steps - world_.rank() % 3 : program_.steps;
    int step = 0;
    for (; step < mine; ++step) one_step(step, program_.join ? 1 + world_.rank() : 1);
    while (program_.join && ddp_->join()) one_step(step++, 0);
    ddp_->check_replicas();
    expect(replicas_agree(world_.communicator(), model_.parameters()), "the replicas differ");
  }

 private:
  Tensor loss(int step, int count) {
    const int begin = 100 * step + 10 * world_.rank();
    return loss_of(model_, begin, begin + count);
  }

  void one_step(int step, int count) {
    zero_grad();
    switch (program_.join ? 0 : program_.draw(step, 5)) {
      case 1: return local_phase(step);
      case 2: {  // a window
        Tape tape;
        tape.backward(loss(step, 2), Weight{2}, {.sync = false});
        break;
      }
      default: break;
    }
    const bool in_window = !program_.join && program_.draw(step, 5) == 2;
    Tape tape;
    const std::optional<Weight> weight = program_.join || in_window
                                             ? std::optional(Weight{static_cast<double>(count)})
                                             : std::nullopt;
    Tensor value = loss(step, count);
    const bool bad_rank = static_cast<int>(program_.draw(step + 3, 7)) == world_.rank();
    if (program_.skip && !program_.join && bad_rank)
      value = scale(value, std::numeric_limits<double>::quiet_NaN());
    tape.backward(value, weight);
    if (program_.draw(step, 3) == 1)
      for (const auto& part : parts()) optim::clip_grad_norm(part, 0.1);
    // Two optimizers may step in any order.
    const bool reversed = (step + world_.rank()) % 2 == 1;
    for (std::size_t k = 0; k < optimizers_.size(); ++k)
      optimizers_[reversed ? optimizers_.size() - 1 - k : k]->step();
  }

  void local_phase(int step) {
    for (int k = 0; k < 2; ++k) {
      zero_grad();
      Tape tape;
      tape.backward(loss(50 * k + step, 1), {}, {.sync = false});
      for (const auto& optimizer : optimizers_) optimizer->step(optim::local);
    }
    zero_grad();
    ddp_->average_parameters();
  }

  std::vector<std::vector<Parameter>> parts() {
    std::vector<Parameter> trained = model_.parameters();
    std::erase_if(trained, [](const Parameter& p) { return !p.managed(); });
    return {trained};
  }
  void zero_grad() {
    for (const auto& optimizer : optimizers_) optimizer->zero_grad();
  }

  const Program& program_;
  World& world_;
  Net model_;
  std::optional<DistributedDataParallel> ddp_;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;
};

}  // namespace

TEST_CASE("drill honest-replicas: programs without a mistake raise no alarm") {
  drill(60, [](std::uint64_t seed) {
    const Program program(seed);
    run_threads(program.size, {.comm = program.comm}, [&](World& world) {
      if (!program.groups) return Trainer(program, world).run();
      std::optional<World> group = world.split(world.rank() % 2);
      Trainer(program, *group).run();
    });
  });
}

TEST_CASE("names that one rank changes, and parameters that are kept local, are no difference") {
  run_threads(3, {}, [](World& world) {
    Net model;
    const auto all = model.parameters();
    all[0].set_requires_grad(false);
    DistributedDataParallel ddp(all, {}, world);
    all[0].keep_local();
    all[0].value().fill(world.rank());
    optim::SGD optimizer({all[1], all[2], all[3]}, {.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < 6; ++step) {
      if (world.rank() == 1) model.second.parameters();  // "second.weight" is now "weight"
      optimizer.zero_grad();
      Tape tape;
      tape.backward(loss_of(model, step, step + 1));
      optimizer.step();
      ddp.check_replicas();
    }
    optimizer.zero_grad();
    ddp.average_parameters();
  });
}
