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

TEST_SUITE_BEGIN("not-cpu not-late");  // the same files, whatever computes

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

TEST_CASE("checkpoint share: who was behind counts its steps from what it has taken over") {
  for (const int size : {2, 3, 5})
    run_threads(size, {}, [](World& world) {
      std::int64_t step = 10 + world.rank();  // all but the last rank are behind
      const std::int64_t most = 10 + world.size() - 1;
      nn::Checkpoint checkpoint;
      checkpoint.add("step", step);
      checkpoint.share(world, step);
      test::expect(step == most, "step {}", step);
      // Marked, and not counted: refused before anything travels.
      checkpoint.mark();
      checkpoint.mark();
      ++step;
      test::expect_error<StateError>(
          fmt::format("progress is {}, and was {} when the state was shared last; since then 2",
                      step, most),
          [&] { checkpoint.share(world, step); });
      ++step;
      checkpoint.share(world, step);
      // Those marks are counted no more; a step that nobody has marked is none of share's business.
      checkpoint.mark();
      test::expect_error<StateError>("since then 1", [&] { checkpoint.share(world, step); });
      checkpoint.share(world, ++step);
      checkpoint.share(world, step);
    });
}

TEST_CASE("checkpoint share: the marked state is that of the last mark, or of share, itself") {
  run_threads(2, {}, [](World& world) {
    manual_seed(3);
    SharedJob job;
    job.checkpoint.share(world, job.step);
    const std::string shared = job.digest();
    for (int step = 0; step < 3; ++step) {
      if (step > 0) job.take_step();
      const std::string marked = job.digest();
      {
        Tape tape;
        (void)job.forward();  // begun, and given up: statistics and streams have moved on
      }
      test::expect(job.digest() != marked, "the step has changed nothing");
      job.checkpoint.share(world, job.step);
      test::expect(job.digest() == marked, "step {}: other bits than at the mark", step);
    }
    test::expect(job.digest() != shared, "no step was taken");
  });
}

TEST_CASE("checkpoint share: a job that survives is told of what is shared, and of each mark") {
  run_threads(2, {}, [](World& world) {
    const auto survival = std::make_shared<dist::Survival>(dist::Survival{{0, 1}});
    world.communicator().membership().survival = survival;
    std::int64_t step = 3;
    nn::Checkpoint checkpoint;
    checkpoint.add("step", step);
    checkpoint.mark();
    test::expect(!survival->shared, "nothing was shared yet");
    checkpoint.share(world, step);
    test::expect(survival->shared, "it is shared");
    for (int k = 0; k < 3; ++k) {
      survival->marked = false;  // an optimizer has stepped
      checkpoint.mark();
      test::expect(survival->marked, "mark {} is not told", k);
    }
  });
}

TEST_SUITE_END();
