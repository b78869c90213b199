// What a step writes on the host, no replay would do again: it is refused, or done at each replay.

#include "host_programs.h"

namespace lockstep::test::host_writes {
namespace {

using host_programs::check_refused;
using host_programs::check_same;
using host_programs::full;
using host_programs::Program;
using host_programs::Trained;

TEST_CASE("recorded steps: a Schedule that moves on within the step") {
  struct State : Trained {
    optim::Schedule schedule{sgd, [](std::int64_t i) { return optim::step_decay(i, 5, 0.5); }};
  };
  const auto make = [] {
    const auto s = std::make_shared<State>();
    return Program{[s] {
                     s->train();
                     s->schedule.step();
                   },
                   [](int) {},
                   [s](std::vector<float>& seen) {
                     s->look(seen);
                     seen.push_back(static_cast<float>(s->schedule.steps()));
                     seen.push_back(static_cast<float>(s->sgd.lr()));
                   }};
  };
  check_same(make, 5);
  // Before the optimizer's step, which then takes the new rate.
  check_same(
      [] {
        const auto s = std::make_shared<State>();
        return Program{[s] {
                         s->schedule.step();
                         s->train();
                       },
                       [](int) {}, [s](std::vector<float>& seen) { s->look(seen); }};
      },
      4);
  // Another Schedule in its place.
  check_same(
      [] {
        struct Replaced : Trained {
          std::optional<optim::Schedule> schedule;
          void schedule_by(double factor) {
            schedule.emplace(sgd, [=](std::int64_t i) { return i > 6 ? factor : 1.0; });
          }
        };
        const auto s = std::make_shared<Replaced>();
        s->schedule_by(0.5);
        return Program{[s] {
                         s->train();
                         s->schedule->step();
                       },
                       [s](int i) {
                         if (i == 4) s->schedule_by(0.25);
                       },
                       [s](std::vector<float>& seen) {
                         s->look(seen);
                         seen.push_back(static_cast<float>(s->schedule->steps()));
                       }};
      },
      4);
}

TEST_CASE("recorded steps: what writes a number of the program's is refused") {
  Trained p;
  check_refused(
      [&] {
        p.sgd.set_lr(0.25);
        p.train();
      },
      "[set_lr] in a step that is recorded");
  check_refused(
      [&] {
        p.sgd.groups()[0].options.momentum = 0.5;
        p.train();
      },
      "[groups] in a step that is recorded");
  check_refused(
      [&] {
        p.sgd.group_views()[0].lr = 0.5;
        p.train();
      },
      "[group_views] in a step that is recorded");
  optim::Plateau plateau(p.sgd);
  check_refused(
      [&] {
        p.train();
        plateau.step(1);
      },
      "[Plateau] in a step that is recorded");
  dist::LossLog log;
  check_refused(
      [&] {
        p.train();
        log.add_parts(dist::LossLog::parts(p.loss), Weight{3, 3}, nullptr);
      },
      "[loss log] in a step that is recorded");
  CHECK(log.waiting() == (on_cpu() ? 1 : 2));
  nn::Metrics metrics("");
  check_refused(
      [&] {
        p.train();
        metrics.add("one", 1, 1);
      },
      "[metrics] in a step that is recorded");
}

TEST_CASE("recorded steps: a number from a Generator is refused") {
  Trained p;
  Generator random(5);
  const Tensor one = Tensor::zeros({1}), count = Tensor::zeros({1}, DType::i64);
  const auto refused = [&](const std::function<void()>& draw, const char* message) {
    check_refused(
        [&] {
          draw();
          p.train();
        },
        message);
  };
  refused([&] { random.uniform(one); }, "[uniform] in a step that is recorded");
  refused([&] { random.normal(one); }, "[normal] in a step that is recorded");
  refused([&] { random.randint(0, 3, count); }, "[randint] in a step that is recorded");
  refused([&] { (void)random.randperm(3); }, "[randperm] in a step that is recorded");
  refused([&] { (void)random.split(); }, "[split] in a step that is recorded");
  refused([&] { (void)Tensor::rand({2}); }, "[uniform] in a step that is recorded");
  refused([&] { random.manual_seed(3); }, "[manual_seed] in a step that is recorded");
  refused([&] { manual_seed(3); }, "[manual_seed] in a step that is recorded");
}

TEST_CASE("recorded steps: a tensor on the cpu that is written or read is refused") {
  Trained p;
  const Tensor a = Tensor::full({2}, 1), b = Tensor::full({2}, 3);
  const auto refused = [&](const std::function<void()>& use, const char* message) {
    check_refused(
        [&] {
          use();
          p.train();
        },
        message);
  };
  refused([&] { a.copy_from(b); }, "[copy_from] in a step that is recorded");
  refused([&] { a.fill(2); }, "[fill] in a step that is recorded");
  refused([&] { a.fill_zero(); }, "[fill_zero] in a step that is recorded");
  refused([&] { a.set({1}, 3); }, "[set] in a step that is recorded");
  refused([&] { (void)a.item({1}); }, "[item] in a step that is recorded");
  refused([&] { (void)a.to_vector<float>(); }, "[to_vector] in a step that is recorded");
  refused([&] { (void)a.span<float>(); }, "[span] in a step that is recorded");
}

TEST_CASE("recorded steps: a collective of the host's is refused") {
  run_threads(1, {}, [](World& world) {
    Trained p;
    const Tensor told = Tensor::full({1}, 3);
    dist::Communicator& ranks = world.communicator();
    const auto refused = [&](const std::function<void()>& call, const char* message) {
      check_refused(
          [&] {
            call();
            p.train();
          },
          message);
    };
    refused([&] { ranks.broadcast(told, 0, "told").wait(); },
            "[broadcast] 'told' on the host, in a step that is recorded");
    refused([&] { ranks.barrier("here").wait(); },
            "[barrier] 'here' on the host, in a step that is recorded");
  });
}

TEST_CASE("recorded steps: an observer that no replay would call is refused") {
  struct Counter final : GradientObserver {
    int ready = 0;
    void gradient_ready(const Parameter&) override { ++ready; }
  };
  {
    Trained p;
    Counter counter;
    const Observation observed = p.w.observe(counter);
    check_refused([&] { p.train(); }, "'w' has an observer");
  }
  Trained p;
  Counter counter;
  check_refused(
      [&] {
        const Observation observed = p.w.observe(counter);
        p.train();
      },
      "'w' has an observer");
}

// An outer tape's backward would compute with other values than its forward.
TEST_CASE("recorded steps: weights that a replay has changed, for a tape from before it") {
  Trained p;
  StepGraph graph([&] { p.train(); }, test_device());
  (void)graph();
  (void)graph();
  Tape tape;
  const Tensor loss = sum(mul(p.w, p.w));
  (void)graph();
  CHECK_THROWS_AS(tape.backward(loss), StateError);
}

}  // namespace
}  // namespace lockstep::test::host_writes
