// Checkpoint::share: all ranks take over what the furthest one had after its last step, and a step
// that was begun begins once more as the first time.

#include <doctest/doctest.h>

#include "lockstep/lockstep.h"
#include "support/expect.h"
#include "support/worlds.h"

using namespace lockstep;

namespace {

struct SharedJob {
  SharedJob() {
    checkpoint.add("model", model);
    checkpoint.add("optimizer", optimizer);
    checkpoint.add("step", step);
  }
  /// Changes the statistics, and draws numbers.
  Tensor forward() {
    Tensor x = Tensor::empty({5, 3});
    for (std::int64_t i = 0; i < x.numel(); ++i)
      x.data<float>()[i] = static_cast<float>((i * i + 3 * step) % 7) - 2;
    return sum(square(model(x)));
  }
  void take_step() {
    Tape tape;
    tape.backward(forward());
    optimizer.step(optim::local);  // no DDP: all ranks do the same
    optimizer.zero_grad();
    ++step;
    checkpoint.mark();
  }
  std::string digest() {
    std::string all;
    for (const auto& [name, tensor] : model.state_dict()) all += nn::sha256_of(tensor);
    return all;
  }

  nn::Sequential model{nn::Linear(3, 4), nn::BatchNorm(4), nn::Dropout(0.3), nn::Linear(4, 1)};
  optim::SGD optimizer{model.parameters(), {.lr = 0.1, .momentum = 0.9}};
  std::int64_t step = 0;
  nn::Checkpoint checkpoint;
};

}  // namespace

TEST_CASE(
    "checkpoint share: a step that one rank has taken is taken on all, one that was begun not") {
  manual_seed(100);  // as rank 0
  SharedJob alone;
  alone.take_step();
  alone.take_step();
  const std::string second = alone.digest();
  alone.take_step();
  const std::string third = alone.digest();

  for (const int size : {1, 2, 3})
    for (int ahead = 0; ahead < size; ++ahead)
      run_threads(size, {}, [&](World& world) {
        manual_seed(100 + static_cast<std::uint64_t>(world.rank()));
        SharedJob job;
        job.checkpoint.share(world, job.step);  // nobody is ahead: rank 0's
        job.take_step();
        if (world.rank() == ahead) job.take_step();
        {
          Tape tape;
          (void)job.forward();  // of the step in which another rank is lost
        }
        job.checkpoint.share(world, job.step);
        test::expect(job.step == 2, "{} steps", job.step);
        test::expect(job.digest() == second, "rank {} of {}: other bits", world.rank(), size);
        job.take_step();
        test::expect(job.digest() == third, "rank {} of {}: other bits after it", world.rank(),
                     size);
      });
}

TEST_CASE("checkpoint share: of several that are as far, the first") {
  run_threads(3, {}, [](World& world) {
    std::int64_t number = 10 + world.rank();
    nn::Checkpoint checkpoint;
    checkpoint.add("number", number);
    checkpoint.share(world, world.rank() == 0 ? 4 : 5);
    test::expect(number == 11, "number {}", number);
  });
}
