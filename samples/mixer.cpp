// A small MLP-Mixer on handwritten digits (Tolstikhin et al., "MLP-Mixer: An all-MLP architecture
// for vision", NeurIPS 2021). A row of 8 pixels is a token. Each block first mixes the 8 tokens of
// a channel, between two transposes, and then the 32 channels of a token. Layers are put together
// from operations: any function of one tensor is a layer.

#include <lockstep/lockstep.h>
using namespace lockstep;

Tensor rows(const Tensor& x) { return reshape(x, {x.size(0), 8, 8}); }
Tensor mean_token(const Tensor& x) { return mean(x, 1); }
using Rows = nn::Function<rows>;
using Transpose = nn::Function<transpose>;
using MeanToken = nn::Function<mean_token>;

constexpr int tokens = 8, channels = 32;

nn::Residual mix_tokens() {
  return nn::Residual(nn::Sequential{nn::LayerNorm(channels), Transpose(),
                                     nn::Linear(tokens, 2 * tokens), nn::GELU(),
                                     nn::Linear(2 * tokens, tokens), Transpose()});
}
nn::Residual mix_channels() {
  return nn::Residual(nn::Sequential{nn::LayerNorm(channels), nn::Linear(channels, 2 * channels),
                                     nn::GELU(), nn::Linear(2 * channels, channels)});
}

int main() {
  World world = World::join();
  manual_seed(0);
  auto [train, test] = data::load_idx("samples/data/digits");
  nn::Sequential model{Rows(),
                       nn::Linear(8, channels),
                       mix_tokens(),
                       mix_channels(),
                       mix_tokens(),
                       mix_channels(),
                       MeanToken(),
                       nn::LayerNorm(channels),
                       nn::Linear(channels, 10)};
  optim::Adam optimizer(model.parameters(), {.lr = 0.005});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);

  double loss = 0, accuracy = 0;
  for (int epoch = 0; epoch < 10; ++epoch) {
    double sum_of_losses = 0;  // over this rank's samples
    for (const data::Batch& batch :
         data::Loader(train, {.total_batch = 48, .shuffle = true}, world, epoch)) {
      Tape tape;
      Tensor mean_loss = nn::cross_entropy(model(batch.x), batch.y);
      tape.backward(mean_loss, batch.weight);
      optimizer.step();
      optimizer.zero_grad();
      sum_of_losses += mean_loss.item() * batch.weight.local;
    }
    loss = dist::sum_over_ranks(world, sum_of_losses) / train.size();
    accuracy = sum(argmax(model(test["x"]), 1) == test["y"]).item() / test.size();
    if (world.rank() == 0)
      fmt::print("epoch {:>2}  loss {:.6f}  test accuracy {:.4f}\n", epoch + 1, loss, accuracy);
  }
  check<Error>(accuracy > 0.9, "test accuracy {:.4f}: the mixer has not learned", accuracy);
  if (world.rank() == 0) fmt::print("final loss={:.6f} test_accuracy={:.4f}\n", loss, accuracy);
}
