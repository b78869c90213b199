// Regression from a table: how far a disease has gone after a year, from ten measurements of 442
// patients (Efron et al., "Least angle regression", Annals of Statistics 32, 2004). Every column is
// standardized with the mean and the deviation of the training part.

#include <lockstep/lockstep.h>
using namespace lockstep;

int main() {
  World world = World::join();
  manual_seed(0);
  data::TensorDataset table = data::load_csv("samples/data/diabetes.csv", {.targets = {"target"}});
  auto [first, rest] = data::split(table, 0.8, /*seed=*/0);
  const data::Fields known = first.all(), unseen = rest.all();
  const auto standardize = [&](const Tensor& values, const char* name) {
    return (values - mean(known[name], 0)) / stdev(known[name], 0);
  };
  data::TensorDataset train(
      {{"x", standardize(known["x"], "x")}, {"y", standardize(known["y"], "y")}});
  Tensor x = standardize(unseen["x"], "x"), y = standardize(unseen["y"], "y");

  nn::Sequential model{nn::Linear(10, 32), nn::ReLU(), nn::Linear(32, 1)};
  optim::Adam optimizer(model.parameters(), {.lr = 0.003});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);

  double loss = 0, explained = 0;
  for (int epoch = 0; epoch < 30; ++epoch) {
    double sum_of_losses = 0;
    for (const data::Batch& batch :
         data::Loader(train, {.total_batch = 48, .shuffle = true}, world, epoch)) {
      Tape tape;
      Tensor mean_loss = nn::mse(model(batch.x), batch.y);
      tape.backward(mean_loss, batch.weight);
      optimizer.step();
      optimizer.zero_grad();
      sum_of_losses += mean_loss.item() * batch.weight.local;
    }
    loss = dist::sum_over_ranks(world, sum_of_losses) / train.size();
    explained = 1 - (nn::mse(model(x), y) / var(y)).item();  // R^2
    if (world.rank() == 0)
      fmt::print("epoch {:>2}  loss {:.6f}  test R^2 {:.4f}\n", epoch + 1, loss, explained);
  }
  check<Error>(explained > 0.4, "[regression_csv] test R^2 is {:.4f}", explained);
  if (world.rank() == 0) fmt::print("final loss={:.6f} test_r2={:.4f}\n", loss, explained);
}
