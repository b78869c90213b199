// `./lockstep sample walk`: the life of one gradient element, from backward to the step. Rank 0
// prints what docs/ddp.md, "The walk of one gradient", tells, with numbers that this run has seen.
//
// The model is 784-512-256-10. Rank r's 32 rows of pixels are all 0.01 (r + 1), all labels are 0.
// The element is (0, 0) of 4.weight, in the second backward: the first one has put the buckets into
// the order in which gradients become ready.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/samples/common/simulated.h"
#include "lockstep/samples/walk/events.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;

constexpr std::int64_t rows = 32;
constexpr const char* followed = "4.weight";

/// The first element of a parameter's gradient.
double first_element(const Parameter& parameter) {
  const Tensor slot = parameter.gradient_slot().detach();
  return static_cast<double>(slot.view({slot.numel()}).slice(0, 1).to_vector<float>()[0]);
}

/// A bucket's gradients, and where the followed one lies in it.
struct Place {
  const dist::GradientBuckets::Bucket* bucket = nullptr;
  std::int64_t element = 0;
};

Place place_of(const dist::GradientBuckets& buckets, const Parameter& parameter) {
  for (const auto& bucket : buckets.all())
    for (const Parameter& member : bucket.parameters)
      if (member.name() == parameter.name())
        return {&bucket, parameter.gradient_slot().data<float>() - bucket.memory.data<float>()};
  fail<Error>("[walk] no bucket has {}", parameter.name());
}

/// Notes what backward tells the observers of parameters. DDP's reducer is one, and is told first.
class Notes final : public GradientObserver {
 public:
  Notes(std::vector<Parameter> parameters, const dist::DistributedDataParallel& ddp)
      : ddp_(ddp), parameters_(std::move(parameters)) {
    for (const Parameter& parameter : parameters_)
      observations_.push_back(parameter.observe(*this));
  }

  void backward_begins(const Contribution& contribution) override {
    *this << fmt::format("a sweep from the loss counts what will come: {}",
                         join([](const Parameter& p) { return p.uses_left(); }));
    std::vector<std::string> waiting;
    for (const auto& bucket : ddp_.buckets().all())
      waiting.push_back(fmt::format("{} for {}", bucket.name, bucket.pending));
    *this << fmt::format("the buckets wait: {} gradients", fmt::join(waiting, ", "));
    *this << fmt::format("the loss is seeded with {:g} / {:g}", contribution.weight,
                         contribution.divisor);
  }
  void gradient_ready(const Parameter& parameter) override {
    if (parameter.name() == followed) own = first_element(parameter);
    ready_.push_back(parameter.name());
    for (const auto& bucket : ddp_.buckets().all())
      if (bucket.index == launched_ && bucket.pending == 0) complete(bucket);
  }

  const Parameter& of(std::string_view name) const {
    for (const Parameter& parameter : parameters_)
      if (parameter.name() == name) return parameter;
    fail<Error>("[walk] there is no {}", name);
  }

  std::vector<std::string> lines;
  double own = 0;  ///< this rank's element, when it was ready

 private:
  Notes& operator<<(std::string line) {
    lines.push_back(std::move(line));
    return *this;
  }
  void complete(const dist::GradientBuckets::Bucket& bucket) {
    *this << fmt::format("ready: {}. {} is complete: its all-reduce is called, of {} elements",
                         fmt::join(ready_, ", "), bucket.name, bucket.memory.numel());
    ready_.clear();
    ++launched_;
  }
  template <class F>
  std::string join(F what) const {
    std::vector<std::string> all;
    for (const Parameter& p : parameters_) all.push_back(fmt::format("{} {}", p.name(), what(p)));
    return fmt::format("{}", fmt::join(all, ", "));
  }

  const dist::DistributedDataParallel& ddp_;
  std::vector<Parameter> parameters_;
  std::vector<Observation> observations_;
  std::vector<std::string> ready_;
  int launched_ = 0;
};

/// What all ranks have seen of the followed element.
struct Walk {
  std::vector<std::string> lines;
  std::vector<double> own;  ///< by rank, before the all-reduce
  double sum = 0;
  double before = 0, after = 0;  ///< the parameter's element, around the step
  std::size_t bytes = 0;         ///< of the gradients' memory
};

// How this element is summed; by whom, if the algorithm cuts a bucket into parts with owners.
std::string sum_of(const Place& place, const World& world) {
  const std::int64_t count = place.bucket->memory.numel();
  const std::string algorithm(
      world.communicator().algorithm(place.bucket->memory.bytes(), DType::f32));
  if (!algorithm.starts_with("two-shot")) return algorithm;
  for (int rank = 0; rank < world.size(); ++rank) {
    const dist::Range part = dist::partition(count, world.size(), rank);
    if (place.element >= part.begin && place.element < part.end)
      return fmt::format("rank {} owns this part, and adds all ranks' contributions up{} ({})",
                         rank, algorithm == "two-shot-shared" ? ", in memory that all reach" : "",
                         algorithm);
  }
  return algorithm;
}

Walk walk(const World& world) {
  manual_seed(0);
  nn::Sequential model{nn::Linear(784, 512), nn::ReLU(), nn::Linear(512, 256), nn::ReLU(),
                       nn::Linear(256, 10)};
  optim::SGD optimizer(model.parameters(), {.lr = 0.1});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
  const Tensor x = Tensor::full({rows, 784}, 0.01 * (world.rank() + 1));
  const Tensor labels = Tensor::zeros({rows}, DType::i64);
  const Weight weight{rows, static_cast<double>(rows * world.size())};
  const auto backward = [&] {
    Tape tape;
    tape.backward(nn::cross_entropy(model(x), labels), weight);
  };
  backward();
  optimizer.step();
  optimizer.zero_grad();

  Notes notes(model.parameters(), ddp);
  const Parameter& parameter = notes.of(followed);
  const Place place = place_of(ddp.buckets(), parameter);
  Walk result;
  backward();
  result.sum = first_element(parameter);
  for (const auto& of_rank : samples::gather(world, {notes.own})) result.own.push_back(of_rank[0]);
  const bool synchronized = parameter.gradient_state() == GradientState::synchronized;
  result.before = parameter.value().detach().item({0, 0});
  optimizer.step();
  result.after = parameter.value().detach().item({0, 0});
  optimizer.zero_grad();
  result.bytes = ddp.buckets().bytes();

  result.lines = notes.lines;
  std::vector<std::string> own;
  for (std::size_t rank = 0; rank < result.own.size(); ++rank)
    own.push_back(fmt::format("{:.9g} on rank {}", result.own[rank], rank));
  result.lines.insert(result.lines.begin() + 3,
                      fmt::format("backward writes it into element {} of {}: {}", place.element,
                                  place.bucket->name, fmt::join(own, ", ")));
  const auto add = [&](std::string line) { result.lines.push_back(std::move(line)); };
  add(fmt::format("{}: {:.9g} on every rank", sum_of(place, world), result.sum));
  add(fmt::format(
      "behind {} travel {} numbers of step metadata: the ranks' weights are {:g} in all, {}",
      ddp.buckets().all().back().name,
      ddp.buckets().used().numel() + ddp.buckets().metadata().numel(), ddp.last_step().weight,
      ddp.last_step().verdict == dist::StepVerdict::commit ? "and all ranks agree to step"
                                                           : "and the step is given up"));
  add(fmt::format(
      "the optimizer finds the gradient {}, and changes the weight from {:.9g} to {:.9g}",
      synchronized ? "synchronized" : "not synchronized", result.before, result.after));
  add(fmt::format(
      "zero_grad: the next gradient will overwrite this one; the memory still has {:.9g}",
      first_element(parameter)));
  check<Error>(std::abs(result.before - 0.1 * result.sum - result.after) <= 1e-7,
               "[walk] the step is not lr times the sum");
  return result;
}

void run_rank(const samples::RunOptions& options, const World& world) {
  const Walk result = walk(world);
  if (world.rank() != 0) return;
  fmt::print("Element (0, 0) of {}'s gradient, second backward, {} ranks\n\n", followed,
             world.size());
  for (std::size_t i = 0; i < result.lines.size(); ++i)
    fmt::print("{:>3}. {}\n", i + 1, result.lines[i]);
  fmt::print("\n{} bytes on every rank hold all gradients and what travels with them.\n",
             result.bytes);
  if (!options.json.empty())
    cli::write_json(options.json, {{"lines", result.lines},
                                   {"own", result.own},
                                   {"sum", result.sum},
                                   {"before", result.before},
                                   {"after", result.after},
                                   {"bytes", result.bytes}});
}

/// --step: one simulated step of `ranks` ranks, event by event, at the reader's key.
int step_by_step(int ranks) {
  check<UsageError>(ranks >= 2 && ranks <= 8, "--step takes 2 to 8 --ranks, got {}", ranks);
  const samples::SimulatedTraining training{.ranks = ranks};
  const std::vector<traces::RankTrace> traces = samples::run(training);
  const auto events = samples::events_of_step(traces, 1);
  std::vector<std::int64_t> elements;  // of the buckets of all steps: each layer is one
  for (const traces::Event& event : traces[0].events)
    if (event.category == "collective" && event.name.starts_with("bucket "))
      elements.push_back(event.arguments.at("elements"));
  const std::int64_t others = elements.at(elements.size() - 2);
  fmt::print(
      "One step of {0} ranks in a simulated world: time is virtual, the reducer and the ring are "
      "the\nreal ones. A message takes up to {6} ms. A rank looks for messages when it calls an "
      "all-reduce, when\na gradient is ready, and without a pause once its backward has ended. The "
      "last rank computes {7:.0f} %\nmore slowly. A drawn part |02 | holds the sum of the "
      "contributions of ranks 0 and 2.\n\n"
      "Of each bucket every rank takes {1} steps, and sends a part in each: in {2} what comes is "
      "added,\nin {2} it is a whole sum. A bucket has {3} elements: a weight of {4} and a bias of "
      "24, "
      "in whole\ncache lines. Behind the last bucket travel {5} numbers of step metadata.\n\n",
      ranks, 2 * (ranks - 1), ranks - 1, others, training.elements, elements.back() - others,
      training.message, 100 * (training.slower - 1));
  bool asks = ::isatty(STDIN_FILENO) != 0;
  if (asks) fmt::print("Enter: the next event    a Enter: all others    q Enter: the end\n\n");
  for (const std::string& event : events) {
    fmt::print("{}\n", event);
    std::fflush(stdout);
    std::string key;
    if (asks && (!std::getline(std::cin, key) || key == "a")) asks = false;
    if (key == "q") break;
  }
  return 0;
}

int run(int argc, char** argv) {
  samples::RunOptions options;
  bool step = false;
  cli::App app("One gradient element, from backward to the step", "lockstep sample walk");
  samples::add_options(app, options, "2, with --step 3; in a launcher's world: its size");
  app.add_flag("--step", step, "One simulated step with a ring, event by event, at your key");
  if (!samples::parse(app, options, argc, argv)) return 0;
  check<UsageError>(!step || (options.json.empty() && options.comm == "auto" && !options.transport),
                    "--step shows a simulated ring: it takes --ranks, not --json, --comm or "
                    "--transport");
  if (step) return step_by_step(options.ranks.value_or(3));
  return samples::run_ranks(options, 2, argc, argv,
                            [&](const World& world) { run_rank(options, world); });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
