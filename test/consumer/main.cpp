// Fits y = 3 x, a sample per rank: (1, 3) on rank 0 and (2, 6) on rank 1. The mean square of x is
// 2.5 on both together: with lr = 0.1 a step halves the distance to 3. After four steps the weight
// is 3 - 3 / 16. A rank alone would arrive elsewhere.

#include <lockstep/lockstep.h>

#include <cstdio>

using namespace lockstep;

int main() {
  World world = World::join();
  nn::Linear layer(1, 1, false);
  layer.weight.value().fill(0);
  optim::SGD optimizer(layer.parameters(), {.lr = 0.1});
  dist::DistributedDataParallel ddp(layer.parameters(), {}, world);

  const Tensor x = Tensor::full({1, 1}, world.rank() + 1.0);
  const Tensor y = Tensor::full({1, 1}, 3 * (world.rank() + 1.0));
  for (int step = 0; step < 4; ++step) {
    Tape tape;
    tape.backward(mse(layer(x), y), Weight{1});
    optimizer.step();
    optimizer.zero_grad();
  }
  dist::on_rank0(world.communicator(), [&] {
    std::printf("weight=%.4f ranks=%d version=%s\n", layer.weight.value().item(), world.size(),
                std::string(version()).c_str());
  });
}
