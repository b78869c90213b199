// A character model (after Bengio et al., "A neural probabilistic language model", JMLR 2003): the
// last characters are embedded, put side by side, and an MLP says which one comes next. It reads
// three sonnets of Shakespeare, and then continues a line.

#include <lockstep/lockstep.h>

#include <fstream>
#include <iterator>
#include <set>
using namespace lockstep;

constexpr std::int64_t context = 8;

int main() {
  World world = World::join();
  manual_seed(0);
  std::ifstream file("samples/data/sonnets.txt");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  check<DataError>(text.size() > context, "no text in samples/data/sonnets.txt");
  const std::set<char> letters(text.begin(), text.end());
  const std::string alphabet(letters.begin(), letters.end());
  const auto codes = [&](std::string_view part) {
    std::vector<std::int64_t> result;
    for (char c : part) result.push_back(alphabet.find(c));
    return Tensor::from(result);
  };
  const std::int64_t n = text.size() - context;  // samples: a context, and what follows it
  std::vector<Tensor> columns;
  for (int i = 0; i < context; ++i) columns.push_back(codes(text).slice(i, n + i));
  data::TensorDataset train(
      {{"x", stack(columns, 1)}, {"y", codes(text).slice(context, n + context)}});

  nn::Sequential model{nn::Embedding(alphabet.size(), 16), nn::Flatten(),
                       nn::Linear(context * 16, 128), nn::Tanh(), nn::Linear(128, alphabet.size())};
  optim::Adam optimizer(model.parameters(), {.lr = 0.003});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);

  double loss = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    double sum_of_losses = 0;
    for (const data::Batch& batch :
         data::Loader(train, {.total_batch = 48, .shuffle = true}, world, epoch)) {
      Tape tape;
      Tensor mean_loss = nn::cross_entropy(model(batch.x), batch.y);
      tape.backward(mean_loss, batch.weight);
      optimizer.step();
      optimizer.zero_grad();
      sum_of_losses += mean_loss.item() * batch.weight.local;
    }
    loss = dist::sum_over_ranks(world, sum_of_losses) / n;
    if (world.rank() == 0) fmt::print("epoch {:>2}  loss {:.6f}\n", epoch + 1, loss);
  }

  const std::string prompt = "Shall I ";
  std::string line = prompt;
  while (line.size() < 80 && line.back() != '\n') {
    Tensor last = codes(line.substr(line.size() - context));
    line += alphabet[argmax(model(unsqueeze(last, 0)), 1).item()];
  }
  check<Error>(loss < 1, "loss {:.4f}: the model has not learned", loss);
  if (world.rank() == 0)
    fmt::print("\nIt goes on from \"{}\":\n{}\nfinal loss={:.6f}\n", prompt, line, loss);
}
