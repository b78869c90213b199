// One training step on two ranks that are threads, with the ring: what tools/first_reading.sh
// --gcov measures. Build it with --coverage. Only the lines of the step are counted: not the
// joining, the construction of DDP, and the first two steps, after which the buckets keep their
// layout.

#include <barrier>

#include "lockstep/lockstep.h"

extern "C" void __gcov_reset();
extern "C" void __gcov_dump();

using namespace lockstep;

int main() {
  std::barrier both(2);
  run_threads(2, {.comm = "ring"}, [&](World& world) {
    manual_seed(0);
    nn::Sequential model{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10)};
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world,
                                      {.bucket_cap_mb = 0.01});
    const auto step = [&] {
      Tape tape;
      const Tensor loss =
          nn::cross_entropy(model(Tensor::full({32, 64}, 0.1)), Tensor::zeros({32}, DType::i64));
      tape.backward(loss, Weight{32, 64});
      optimizer.step();
      optimizer.zero_grad();
    };
    step();
    step();
    both.arrive_and_wait();
    if (world.rank() == 0) __gcov_reset();
    both.arrive_and_wait();
    step();
    both.arrive_and_wait();
    if (world.rank() == 0) __gcov_dump();
    both.arrive_and_wait();
    if (world.rank() == 0) __gcov_reset();  // what follows is written at the program's end: nothing
    both.arrive_and_wait();
  });
  std::_Exit(0);
}
