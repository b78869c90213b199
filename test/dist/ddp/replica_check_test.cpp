// What an optimizer no longer steps on is compared all the same: in turn, whatever was stepped on
// before.

#include <doctest/doctest.h>

#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

constexpr std::size_t parameters = 5;

struct Turns {
  explicit Turns(World& world) : ddp(all, {}, world) {
    for (std::size_t i = 0; i < parameters; ++i)
      each.push_back(
          std::make_unique<optim::SGD>(std::vector{all[i]}, optim::SgdOptions{.lr = 0.1}));
  }
  void backward(int step) const {
    Tape tape;
    Tensor loss = Tensor::scalar(0, DType::f64);
    for (const Parameter& p : all) loss = loss + sum(p * static_cast<double>(step % 3 + 1));
    tape.backward(loss);
  }
  /// One step, on those parameters alone for which `steps(i)`.
  template <class F>
  void step(int number, F steps) const {
    backward(number);
    for (std::size_t i = 0; i < parameters; ++i)
      if (steps(i)) each[i]->step();
    for (const Parameter& p : all) p.zero_grad();
  }

  std::vector<Parameter> all = [] {
    std::vector<Parameter> made;
    for (std::size_t i = 0; i < parameters; ++i)
      made.emplace_back(Tensor::full({2}, static_cast<double>(i), DType::f64),
                        fmt::format("p{}", i));
    return made;
  }();
  DistributedDataParallel ddp;
  std::vector<std::unique_ptr<optim::SGD>> each;
};

/// All parameters are stepped on once; then those with i % 2 == 0 alone, or none. The rank `odd`
/// writes to parameter `target`, which is compared within as many backwards as there are
/// parameters, and one.
void check_found(int size, int odd, std::size_t target, bool none) {
  std::vector<int> backwards(index(size));
  const auto messages = test::messages_on_threads(size, [&](World& world) {
    const Turns turns(world);
    const auto some = [&](std::size_t i) { return i % 2 == 0 && !none; };
    turns.step(0, [](std::size_t) { return true; });
    for (int step = 1; step < 4; ++step) turns.step(step, some);
    if (world.rank() == odd) turns.all[target].value().data<double>()[1] += 0.5;
    for (int step = 4; step < 4 + 2 * static_cast<int>(parameters); ++step) {
      turns.step(step, some);
      ++backwards[index(world.rank())];
    }
  });
  CAPTURE(size);
  CAPTURE(odd);
  CAPTURE(target);
  CAPTURE(none);
  test::check_all_say(messages, {fmt::format("'p{}' at (1)", target)});
  for (const int count : backwards) CHECK(count <= static_cast<int>(parameters) + 1);
}

}  // namespace

TEST_CASE("replica check: whichever parameter is no longer stepped on, a change of it is found") {
  for (const int size : {2, 3})
    for (const bool none : {false, true})
      for (std::size_t target = 0; target < parameters; ++target)
        check_found(size, static_cast<int>(target) % size, target, none);
}

TEST_CASE("replica check: what one rank keeps for itself is compared by nobody, stepped or not") {
  for (const bool steps : {false, true})
    run_threads(2, {}, [&](World& world) {
      std::vector<Parameter> all{Parameter(Tensor::full({2}, 1, DType::f64), "shared"),
                                 Parameter(Tensor::full({2}, world.rank(), DType::f64), "own")};
      all[1].keep_local();
      DistributedDataParallel ddp(all, {}, world);
      optim::SGD optimizer(steps ? all : std::vector{all[0]}, {.lr = 0.1, .momentum = 0.5});
      for (int step = 0; step < 4; ++step) {
        Tape tape;
        tape.backward(sum(all[0] * 2.0) + sum(square(all[1])) * (world.rank() + 1.0));
        optimizer.step();
        for (const Parameter& p : all) p.zero_grad();
      }
      ddp.check_replicas();
    });
}
