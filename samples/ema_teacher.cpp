// A student and its teacher, whose weights are the running mean of the student's (Tarvainen and
// Valpola, "Mean teachers are better role models", NeurIPS 2017). 40 % of the training labels are
// wrong. The student learns from the labels, and to agree with its teacher; the teacher is not
// trained, and is right more often.

#include <lockstep/lockstep.h>
using namespace lockstep;

double accuracy(nn::Module& model, const data::Dataset& set) {
  const data::Fields all = set.all();
  return sum(argmax(model(all["x"]), 1) == all["y"]).item() / set.size();
}

int main() {
  World world = World::join();
  manual_seed(0);
  auto [digits, test] = data::load_idx("samples/data/digits");
  const std::int64_t n = digits.size();
  Tensor noise = Tensor::randint(0, 10, {n}), wrong = Tensor::rand({n}) < 0.4;
  data::TensorDataset train({{"x", digits["x"]}, {"y", where(wrong, noise, digits["y"])}});

  nn::Sequential student{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 10)};
  nn::Sequential teacher = nn::clone(student);
  optim::SGD optimizer(student.parameters(), {.lr = 0.1, .momentum = 0.9});
  dist::DistributedDataParallel ddp(student.parameters(), student.buffers(), world);

  const auto learned = student.state_dict(), averaged = teacher.state_dict();
  double students = 0, teachers = 0;
  for (int epoch = 0; epoch < 20; ++epoch) {
    double sum_of_losses = 0;
    for (const data::Batch& batch :
         data::Loader(train, {.total_batch = 48, .shuffle = true}, world, epoch)) {
      Tensor taught = softmax(teacher(batch.x), 1);  // no tape lives: constants
      Tape tape;
      Tensor logits = student(batch.x);
      Tensor loss = nn::cross_entropy(logits, batch.y) + 10 * nn::mse(softmax(logits, 1), taught);
      tape.backward(loss, batch.weight);
      optimizer.step();
      optimizer.zero_grad();
      sum_of_losses += loss.item() * batch.weight.local;
      for (const auto& [name, mean] : averaged) mean.copy_from(lerp(mean, learned.at(name), 0.01));
    }
    students = accuracy(student, test), teachers = accuracy(teacher, test);
    double loss = dist::sum_over_ranks(world, sum_of_losses) / n;
    if (world.rank() == 0)
      fmt::print("epoch {:>2}  loss {:.6f}  student {:.4f}  teacher {:.4f}\n", epoch + 1, loss,
                 students, teachers);
  }
  check<Error>(teachers > students, "the teacher ({:.4f}) is no better than the student ({:.4f})",
               teachers, students);
  if (world.rank() == 0) fmt::print("final student={:.4f} teacher={:.4f}\n", students, teachers);
}
