// The program of the README: everything that a data-parallel training needs.

#include <lockstep/lockstep.h>
using namespace lockstep;

int main() {
  World world = World::join();  // from the launcher's environment; started alone: a world of 1
  manual_seed(0);
  auto [train, test] = data::load_idx("samples/data/digits");
  nn::Sequential model{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10)};
  optim::SGD optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);

  for (int epoch = 0; epoch < 30; ++epoch) {
    double loss_sum = 0;
    for (const data::Batch& batch :
         data::Loader(train, {.batch = 32, .shuffle = true}, world, epoch)) {
      Tape tape;  // operations record while it lives
      Tensor loss = nn::cross_entropy(model(batch.x), batch.y);
      tape.backward(loss, batch.weight);  // ready gradients travel while this runs
      optimizer.step();                   // refuses a gradient that was not synchronized
      optimizer.zero_grad();
      loss_sum += loss.item() * batch.weight.local;
    }
    loss_sum = dist::sum_over_ranks(world, loss_sum);
    if (world.rank() == 0)
      fmt::print("epoch {:>2}: loss {:.4f}\n", epoch + 1, loss_sum / train.size());
  }
  double right = sum(argmax(model(test["x"]), 1) == test["y"]).item();
  if (world.rank() == 0) fmt::print("{} of {} are right\n", right, test.size());
}
