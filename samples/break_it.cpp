// `./lockstep sample break_it`: what each part of data parallelism is good for. One training loop,
// written with the library's parts, in which one thing at a time is left out or done wrong.
//
// For each mistake a table says how far the replicas drift apart, how far rank 0 is from one
// process that has all rows, and both losses, after steps 1, 2, 3 and 20. Ranks are threads.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;

constexpr std::int64_t rows = 16, steps = 20;
constexpr std::int64_t shown[] = {1, 2, 3, 20};

enum class Mistake : std::uint8_t {
  none,
  no_broadcast,
  forgotten_sum,
  mean_of_means,
  same_rows,
  own_statistics,
  other_order,
  unused_parameter,
};

struct Lesson {
  Mistake mistake;
  const char* name;
  const char* why;
  const char* where;  ///< what does it right
};

constexpr Lesson lessons[] = {
    {Mistake::none, "nothing is wrong", "Equal replicas that take equal steps stay equal.",
     "samples/break_it.cpp: train(); docs/ddp.md tells how the library does it"},
    {Mistake::no_broadcast, "no broadcast: each rank keeps its own first weights",
     "Equal steps keep every difference between replicas. Their mean gradient fits none of them.",
     "dist/ddp/ddp.cpp: the constructor broadcasts rank 0's values; each step compares the "
     "replicas"},
    {Mistake::forgotten_sum, "step 2 is taken on each rank's own gradient",
     "One step without the sum is enough: the sums after it keep the difference.",
     "nn/optim/optimizer.cpp: step() refuses a gradient that is not synchronized"},
    {Mistake::mean_of_means, "the mean over ranks of their means, of unequal parts",
     "The replicas agree, on a wrong gradient: a row counts more where there are fewer.",
     "autograd/tape.cpp: backward(loss, weight) seeds the loss with rows / all rows"},
    {Mistake::same_rows, "every rank takes the same rows",
     "The replicas agree. The other rows are never seen.",
     "data/sampler.h: disjoint parts of one order; the ranks compare what they took"},
    {Mistake::own_statistics, "BatchNorm over each rank's own rows",
     "The replicas agree on what is learned, not on what it is divided by.",
     "nn/batch_norm.h: SyncBatchNorm merges the ranks' means and variances"},
    {Mistake::other_order, "rank 1 sums the gradients in another order",
     "Collectives are matched by their order. Without names, gradients would be mixed up.",
     "dist/ddp/reducer.cpp: buckets are launched by their index, whichever is ready first"},
    {Mistake::unused_parameter, "rank 1's loss does not reach a parameter, and it does not sum it",
     "The others wait for a sum in which it takes no part: it is at its next collective, which "
     "gathers\n   the figures of this table.",
     "dist/ddp/reducer.cpp: a parameter that will get nothing is ready at once, as zero"},
};

/// The rows of a rank. The first has more than the others, so that it matters how they count.
dist::Range rows_of(int rank, int ranks) {
  const std::int64_t small = rows / (2 * ranks);
  return rank == 0 ? dist::Range{0, rows - (ranks - 1) * small}
                   : dist::Range{rows - (ranks - rank) * small, rows - (ranks - rank - 1) * small};
}

nn::Sequential make_model(bool with_norm) {
  nn::Sequential model{nn::Linear(3, 5)};
  if (with_norm) model.append(nn::BatchNorm(5));
  model.append(nn::Tanh());
  model.append(nn::Linear(5, 2));
  return model;
}

struct Data {
  Tensor x, y;
  Data part(const dist::Range& range) const {
    return {x.slice(range.begin, range.end), y.slice(range.begin, range.end)};
  }
};

Data data_of(std::int64_t step) {
  Generator generator(static_cast<std::uint64_t>(100 + step));
  const Tensor x = Tensor::empty({rows, 3}), mix = Tensor::empty({3, 2});
  generator.normal(x);
  Generator(7).normal(mix);  // what is to be learned is the same in every step
  return {x, tanh(matmul(x, mix))};
}

std::vector<double> values_of(nn::Module& model) {
  std::vector<double> values;
  for (const Parameter& parameter : model.parameters())
    for (const float value : parameter.value().to_vector<float>()) values.push_back(value);
  return values;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = samples::larger(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// After each step.
struct Course {
  std::vector<double> between_replicas, from_one_process;
  std::vector<double> loss, loss_of_one_process;  ///< over all rows of the step, rank 0's
  std::string error;                              ///< what the library said, if it did not go on
};

/// The sums of all ranks' gradients, in the place of this rank's.
void sum_gradients(const World& world, std::vector<Parameter> parameters, Mistake mistake) {
  if (mistake == Mistake::other_order && world.rank() == 1) std::ranges::reverse(parameters);
  for (const Parameter& parameter : parameters)
    if (const Tensor gradient = parameter.gradient(); gradient.defined())
      world.communicator().all_reduce(gradient, parameter.name()).wait();
}

void train(const World& world, Mistake mistake, Course& course) {
  const bool with_norm = mistake == Mistake::own_statistics;
  manual_seed(1);
  nn::Sequential one_process = make_model(with_norm);
  const bool own_weights = mistake == Mistake::no_broadcast;
  manual_seed(own_weights ? 1 + static_cast<std::uint64_t>(world.rank()) : 1);
  nn::Sequential model = make_model(with_norm);
  optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  optim::SGD reference(one_process.parameters(), {.lr = 0.1});

  for (std::int64_t step = 1; step <= steps; ++step) {
    const Data all = data_of(step);
    const bool same = mistake == Mistake::same_rows;
    const Data mine = all.part(rows_of(same ? 0 : world.rank(), world.size()));
    const bool equal_shares = same || mistake == Mistake::mean_of_means;
    const double share =
        equal_shares ? 1.0 / world.size() : static_cast<double>(mine.x.size(0)) / rows;
    {
      Tape tape;
      const bool short_cut = mistake == Mistake::unused_parameter && world.rank() == 1;
      const Tensor loss =
          short_cut ? mean(square(model.at("0")(mine.x))) : nn::mse(model(mine.x), mine.y);
      tape.backward(loss * share);
    }
    if (mistake != Mistake::forgotten_sum || step != 2)
      sum_gradients(world, model.parameters(), mistake);
    optimizer.step(optim::local);  // step() alone would ask for a DistributedDataParallel
    optimizer.zero_grad();
    {
      Tape tape;
      tape.backward(nn::mse(one_process(all.x), all.y));
    }
    reference.step(optim::local);
    reference.zero_grad();

    const auto replicas = samples::gather(world, values_of(model));
    if (world.rank() != 0) continue;
    double drift = 0;
    for (const auto& replica : replicas)
      drift = samples::larger(drift, largest_difference(replica, replicas[0]));
    course.between_replicas.push_back(drift);
    course.from_one_process.push_back(largest_difference(replicas[0], values_of(one_process)));
    course.loss.push_back(nn::mse(model(all.x), all.y).item());
    course.loss_of_one_process.push_back(nn::mse(one_process(all.x), all.y).item());
  }
}

Course course_of(Mistake mistake, int ranks) {
  Course course;
  try {
    run_threads(ranks, {}, [&](World& world) { train(world, mistake, course); });
  } catch (const Error& error) {
    course.error = error.what();
  }
  return course;
}

std::string printed(double figure, bool is_loss) {
  return is_loss ? fmt::format("{:.4f}", figure) : fmt::format("{:.2g}", figure);
}

void print(int number, const Lesson& lesson, const Course& course) {
  fmt::print("\n{}. {}\n", number, lesson.name);
  if (course.error.empty()) {
    fmt::print("   {:<34}", "after step");
    for (const std::int64_t step : shown) fmt::print("{:>10}", step);
    for (const auto& [name, figures] :
         {std::pair("replicas differ by", &course.between_replicas),
          std::pair("rank 0 differs from one process by", &course.from_one_process),
          std::pair("rank 0's loss", &course.loss),
          std::pair("one process's loss", &course.loss_of_one_process)}) {
      fmt::print("\n   {:<34}", name);
      for (const std::int64_t step : shown)
        fmt::print("{:>10}",
                   printed((*figures)[static_cast<std::size_t>(step - 1)],
                           figures == &course.loss || figures == &course.loss_of_one_process));
    }
    fmt::print("\n");
  } else {
    fmt::print("   noticed: {}\n", course.error);
  }
  fmt::print("   {}\n   Right: {}\n", lesson.why, lesson.where);
}

/// What must be seen, or the explanation is wrong.
bool holds(Mistake mistake, const Course& course) {
  if (mistake == Mistake::other_order || mistake == Mistake::unused_parameter)
    return !course.error.empty();
  if (!course.error.empty()) return false;
  const auto& between = course.between_replicas;
  const bool far = course.from_one_process.back() > 1e-3;
  const bool equal = *std::ranges::max_element(between) == 0;
  switch (mistake) {
    case Mistake::none: return equal && *std::ranges::max_element(course.from_one_process) < 1e-5;
    case Mistake::no_broadcast:
      return between[0] > 0.1 && std::abs(between.back() - between[0]) < 1e-5;
    case Mistake::forgotten_sum:
      return between[0] == 0 && between[1] > 1e-3 && between.back() > 1e-3;
    default: return equal && far;
  }
}

int run(int argc, char** argv) {
  int ranks = 2;
  std::string json;
  cli::App app("What each part of data parallelism is good for", "lockstep sample break_it");
  app.add_option("--ranks", ranks, "Replicas, as threads: 2 to 4 (2)")
      .check(cli::whole_number<int>());
  app.add_option("--json", json, "Write a machine-readable summary");
  if (!app.parse(argc, argv)) return 0;
  check<UsageError>(ranks >= 2 && ranks <= 4, "--ranks must be in 2..4, got {}", ranks);
  cli::check_writable("--json", json);

  fmt::print(
      "{} ranks, {} rows per step, SGD: what happens if ... (largest difference of a parameter)\n",
      ranks, rows);
  nlohmann::ordered_json summary;
  samples::Comparison comparison;
  int number = 0;
  for (const Lesson& lesson : lessons) {
    const Course course = course_of(lesson.mistake, ranks);
    print(number++, lesson, course);
    comparison.claim(lesson.name, holds(lesson.mistake, course));
    summary[lesson.name] = {{"where", lesson.where},
                            {"between_replicas", course.between_replicas},
                            {"from_one_process", course.from_one_process},
                            {"loss", course.loss},
                            {"loss_of_one_process", course.loss_of_one_process},
                            {"error", course.error}};
  }
  if (!json.empty()) cli::write_json(json, summary);
  (void)comparison.verdict();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
