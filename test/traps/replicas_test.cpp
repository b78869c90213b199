// One rank does something else to its replica. Every step proves that the replicas are equal, so
// all ranks learn of it by the second synchronizing backward after it, by name.

#include "traps/replicas.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>

#include "lockstep/kernels/elementwise.h"
#include "support/drill.h"
#include "support/small_models.h"
#include "support/worlds.h"
#include "traps/flip_over_tcp.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// A rank that trains a Net. Its parts may be replaced.
struct Training {
  explicit Training(World& joined)
      : world(joined),
        ddp(std::in_place, model.parameters(), model.buffers(), joined),
        optimizer(std::make_unique<optim::SGD>(model.parameters(), usual)) {}

  Parameter parameter(std::size_t i) const { return model.parameters()[i]; }
  double& element(std::size_t i, std::int64_t at = 1) const {
    return parameter(i).value().data<double>()[at];
  }
  Tensor momentum(std::size_t i) const { return optimizer->state_of(parameter(i)).at(0).value; }

  World& world;
  mutable Net model;  // "first.weight", "first.bias", "second.weight", "second.bias"
  std::optional<DistributedDataParallel> ddp;
  std::unique_ptr<optim::SGD> optimizer;
  bool steps = true, sync = true;
};

enum class When { before_backward, before_step, after_step };
using enum When;

struct Move {
  const char* name;
  When when;
  std::function<void(Training&)> act;
  const char* text;        // what every rank's error contains
  bool by_itself = false;  // the rank that makes the move is refused at once; the others hear of it
};

void flip(double& element, int bit) {
  element = std::bit_cast<double>(std::bit_cast<std::uint64_t>(element) ^ (1ull << bit));
}

void clip(Training& t, double limit, std::size_t count = 4) {
  std::vector<Parameter> some = t.model.parameters();
  some.resize(count);
  optim::clip_grad_norm(some, limit);
}

const std::vector<Move> moves = {
    {"writes to a parameter", after_step, [](Training& t) { t.element(2) = 7; },
     "'second.weight' at (0, 1)"},
    {"writes to a bias, before backward", before_backward, [](Training& t) { t.element(3) += 1; },
     "'second.bias' at (1)"},
    {"writes to a parameter, before the step", before_step, [](Training& t) { t.element(0) = 7; },
     "'first.weight' at (0, 1)"},
    {"has the lowest bit flipped", after_step, [](Training& t) { flip(t.element(1, 0), 0); },
     "'first.bias' at (0)"},
    {"has a sign flipped", after_step, [](Training& t) { flip(t.element(1, 3), 63); },
     "'first.bias' at (3)"},
    {"has a bit of its momentum flipped", after_step,
     [](Training& t) { flip(t.momentum(2).data<double>()[5], 30); }, "momentum of 'second.weight'"},
    {"writes to its momentum", before_step,
     [](Training& t) { t.momentum(3).data<double>()[0] = 3; }, "momentum of 'second.bias'"},
    {"has a bit of a reduced gradient flipped", before_step,
     [](Training& t) { flip(t.parameter(0).gradient().data<double>()[2], 20); }, differ},
    {"writes to a gradient", before_step, [](Training& t) { t.parameter(3).gradient().fill(1); },
     differ},
    {"loads other values", after_step,
     [](Training& t) {
       Net other;
       t.model.load_state_dict(other.state_dict());
     },
     differ},
    {"loads one tensor", after_step,
     [](Training& t) {
       auto state = t.model.state_dict();
       state.at("second.bias") = Tensor::full({2}, 0.5, DType::f64);
       t.model.load_state_dict(state);
     },
     "'second.bias' at (0)"},
    {"swaps two elements", after_step,
     [](Training& t) { std::swap(t.element(2, 0), t.element(2, 7)); }, "'second.weight' at (0, 0)"},
    {"exchanges two parameters", after_step,
     [](Training& t) {
       for (std::int64_t i = 0; i < 2; ++i) std::swap(t.element(1, i), t.element(3, i));
     },
     "'second.bias'"},
    {"loses an element", after_step, [](Training& t) { t.element(3, 0) = 0; }, differ},
    {"rounds a parameter to f32", before_backward,
     [](Training& t) { t.element(0, 5) = static_cast<float>(t.element(0, 5)); },
     "'first.weight' at (1, 2)"},
    {"rounds a gradient to f32", before_step,
     [](Training& t) {
       double& first = t.parameter(0).gradient().data<double>()[0];
       first = static_cast<float>(first);
     },
     differ},
    {"scales its gradients", before_step,
     [](Training& t) {
       for (const Parameter& p : t.model.parameters())
         kernels::scale(1.5, p.gradient(), p.gradient(), false);
     },
     differ},
    {"negates its momentum", after_step,
     [](Training& t) { kernels::scale(-1, t.momentum(1), t.momentum(1), false); },
     "momentum of 'first.bias'"},
    {"zeroes one gradient", before_step, [](Training& t) { t.parameter(1).zero_grad(); }, differ},
    {"zeroes all gradients", before_step, [](Training& t) { t.optimizer->zero_grad(); }, differ},
    {"clips", before_step, [](Training& t) { clip(t, 1e-3); }, differ},
    {"clips only some", before_step, [](Training& t) { clip(t, 1e-3, 2); }, differ},
    {"clips by value", before_step,
     [](Training& t) { optim::clip_grad_value(t.model.parameters(), 1e-4); }, differ},
    {"loses its momentum", after_step,
     [](Training& t) { t.optimizer = std::make_unique<optim::SGD>(t.model.parameters(), usual); },
     differ},
    {"changes lr", before_step, [](Training& t) { t.optimizer->groups()[0].options.lr = 0.2; },
     other_steps},
    {"changes lr by a rounding", before_step,
     [](Training& t) { t.optimizer->groups()[0].options.lr = std::nextafter(0.1, 1); },
     other_steps},
    {"changes momentum", before_step,
     [](Training& t) { t.optimizer->groups()[0].options.momentum = 0.8; }, other_steps},
    {"changes dampening", before_step,
     [](Training& t) { t.optimizer->groups()[0].options.dampening = 0.1; }, other_steps},
    {"changes weight decay", before_step,
     [](Training& t) { t.optimizer->groups()[0].options.weight_decay = 0.1; }, other_steps},
    {"changes to nesterov", before_step,
     [](Training& t) { t.optimizer->groups()[0].options.nesterov = true; }, other_steps},
    {"leaves a layer out of its optimizer", after_step,
     [](Training& t) {
       auto some = t.model.parameters();
       some.resize(2);
       auto kept = std::move(t.optimizer);
       t.optimizer = std::make_unique<optim::SGD>(some, usual);
     },
     "zeroed: zero_grad() on all ranks or on none"},
    {"skips a step", before_step, [](Training& t) { t.steps = false; }, other_steps},
    {"steps twice", after_step, [](Training& t) { t.optimizer->step(); },
     "nothing was synchronized since the last step", true},
    {"steps by another optimizer too", before_step,
     [](Training& t) { optim::SGD(t.model.parameters(), {.lr = 1e-3}).step(); }, other_steps},
    {"runs a backward more", after_step,
     [](Training& t) {
       t.optimizer->zero_grad();
       Tape tape;
       tape.backward(loss_of(t.model, 3, 4));
     },
     other_steps},
    {"only accumulates", before_backward, [](Training& t) { t.sync = false; },
     "is not synchronized", true},
    {"steps by Adam", before_step,
     [](Training& t) {
       optim::Adam(t.model.parameters(), {}).step();
       t.steps = false;
     },
     other_steps},
    {"takes a local step", after_step,
     [](Training& t) {
       t.optimizer->zero_grad();
       Tape tape;
       tape.backward(loss_of(t.model, 1, 2), {}, {.sync = false});
       t.optimizer->step(optim::local);
       t.optimizer->zero_grad();
     },
     "stepped on this rank's own gradients", true},
    {"ends its DDP", before_step, [](Training& t) { t.ddp.reset(); }, "", true},
    {"averages alone", after_step, [](Training& t) { t.ddp->average_parameters(); }, "average"},
    {"checks alone", after_step, [](Training& t) { t.ddp->check_replicas(); }, "replicas"},
};

/// What each rank throws, and how many backwards it ended well after the move.
struct Report {
  std::vector<std::string> messages;
  std::vector<int> backwards;
};

Report play(const Move& move, int size, int odd_rank, int at_step, int steps = 6) {
  Report report{std::vector<std::string>(dist::index(size)), std::vector<int>(dist::index(size))};
  run_threads(size, {.timeout = dist::Seconds(20)}, [&](World& world) {
    const std::size_t me = dist::index(world.rank());
    try {
      Training t(world);
      bool made = false;  // also on the other ranks: the time of the move has come
      const auto moment = [&](When when, int step) {
        if (when != move.when || step != at_step) return;
        made = true;
        if (world.rank() == odd_rank) move.act(t);
      };
      for (int step = 0; step < steps; ++step) {
        moment(before_backward, step);
        t.optimizer->zero_grad();
        Tape tape;
        const int begin = 10 * step + world.rank();
        tape.backward(loss_of(t.model, begin, begin + 1), {}, {.sync = t.sync});
        report.backwards[me] += made;
        moment(before_step, step);
        if (std::exchange(t.steps, true)) t.optimizer->step();
        moment(after_step, step);
      }
    } catch (const Error& error) {
      report.messages[me] = error.what();
    }
  });
  return report;
}

void check_found(const Move& move, int size, int odd_rank, int at_step) {
  CAPTURE(move.name);
  CAPTURE(size);
  CAPTURE(odd_rank);
  CAPTURE(at_step);
  const Report report = play(move, size, odd_rank, at_step);
  for (std::size_t r = 0; r < dist::index(size); ++r) {
    CAPTURE(r);
    CAPTURE(report.messages[r]);
    CHECK(report.messages[r] != "");
    CHECK(report.backwards[r] <= 1);  // the second one has found it
    if (!move.by_itself || static_cast<int>(r) == odd_rank)
      CHECK(report.messages[r].find(move.text) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("trap: what one rank does to its replica is found by the second backward") {
  for (const Move& move : moves)
    for (const int size : {2, 3, 5})
      for (const int odd_rank : {0, size - 1}) check_found(move, size, odd_rank, 2);
}

TEST_CASE("drill other-replica: one rank makes one move, at a random step") {
  drill(30, [](std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
    const Move& move = moves[static_cast<std::size_t>(below(moves.size()))];
    const int size = 2 + below(5);
    check_found(move, size, below(static_cast<std::size_t>(size)), 1 + below(3));
  });
}

TEST_CASE("trap: a difference names the tensor, the index, the ranks, and who is in the minority") {
  const Report two = play(moves[0], 2, 1, 2), three = play(moves[0], 3, 1, 2);
  for (const std::string& message : two.messages) {
    CHECK(message.find("[backward] the replicas differ: ") == 0);
    CHECK(message.find(" on rank 0, ") != std::string::npos);  // of two, both are named
    CHECK(message.find(" on rank 1") != std::string::npos);
    CHECK(message.find("minority") == std::string::npos);
  }
  for (const std::string& message : three.messages)
    CHECK(message.find("on rank 1, ") < message.find("on ranks 0, 2: rank 1 is in the minority"));
}

TEST_CASE("trap: the index of a difference far from the beginning of a large tensor") {
  for (const std::int64_t index : {0, 4095, 4096, 9001}) {
    CAPTURE(index);
    const auto messages = messages_on_threads(3, [=](World& world) {
      const Parameter w(Tensor::zeros({101, 100}), "w");
      DistributedDataParallel ddp({w}, {}, world);
      if (world.rank() == 1) w.value().data<float>()[index] = 0.5f;
      ddp.check_replicas();
    });
    check_all_say(messages, {fmt::format("'w' at ({}, {}): 0.5", index / 100, index % 100)});
  }
}

TEST_CASE("trap: one rank changes one of many frozen parameters") {
  for (const std::size_t frozen : {1u, 2u, 3u, 4u, 7u}) {
    CAPTURE(frozen);
    for (std::size_t odd = 0; odd < frozen; ++odd) {
      const auto messages = messages_on_threads(2, [=](World& world) {
        std::vector<Parameter> all{scalar("w", 1)};
        for (std::size_t k = 0; k < frozen; ++k) {
          all.push_back(scalar(fmt::format("frozen {}", k), 2));
          all.back().set_requires_grad(false);
        }
        DistributedDataParallel ddp(all, {}, world);
        optim::SGD optimizer({all[0]}, {.lr = 0.5});
        if (world.rank() == 1) all[odd + 1].value().fill(3);
        for (std::size_t step = 0; step <= frozen + 1; ++step) {  // one is looked at in each
          optimizer.zero_grad();
          Tape tape;
          tape.backward(scale(all[0], 1));
          optimizer.step();
        }
      });
      check_all_say(messages, {fmt::format("the replicas differ: 'frozen {}'", odd)});
    }
  }
}

namespace {

/// A bit of a parameter (0), of momentum (1) or of a reduced gradient (2).
void flip_in_memory(int tensor, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
  const int size = 2 + below(5), victim = below(static_cast<std::size_t>(size));
  const int parameter = below(4), bit = below(64);
  const std::uint64_t place = random();
  const Move move{"a bit flips", tensor == 2 ? before_step : after_step,
                  [=](Training& t) {
                    const auto i = static_cast<std::size_t>(parameter);
                    const Tensor memory = tensor == 0   ? t.parameter(i).value()
                                          : tensor == 1 ? t.momentum(i)
                                                        : t.parameter(i).gradient();
                    const std::uint64_t at = place % static_cast<std::uint64_t>(memory.numel());
                    flip(memory.data<double>()[at], bit);
                  },
                  differ};
  const Report report = play(move, size, victim, 2);
  // The lowest bits may be rounded away by the next step. Then the replicas are equal, or
  // run_threads would have said so.
  if (std::ranges::all_of(report.messages, &std::string::empty)) return;
  const std::string names[] = {"'first.weight'", "'first.bias'", "'second.weight'",
                               "'second.bias'"};
  for (std::size_t r = 0; r < dist::index(size); ++r) {
    const std::string& message = report.messages[r];
    expect(report.backwards[r] <= 1, "rank {} went on", r);
    // The tensor, and who: of two ranks both.
    for (const std::string& part :
         {std::string(differ), names[parameter], fmt::format("on rank {}", victim),
          size > 2 ? fmt::format("rank {} is in the minority", victim) : "on rank"})
      expect(message.find(part) != std::string::npos, "no {} in: {}", part, message);
  }
}

}  // namespace

TEST_CASE("drill flipped-bit: of a parameter, of momentum, of a reduced gradient, over TCP") {
  drill(40, [](std::uint64_t seed) {
    const int kind = static_cast<int>(seed % 4);
    if (kind == 3)
      flip_over_tcp(seed);
    else
      flip_in_memory(kind, seed);
  });
}
