// `./lockstep bench step`: whole training steps (forward, backward, all-reduce, optimizer) of an
// MLP on random data; with --peer pytorch, side by side with PyTorch's in the same run.
//
// Method: the peer's first loss must equal ours (the same seeds give the same weights and data), so
// that both do the same work. Warm-up; then rounds in turns, ours and the peer's, each of as many
// steps as take about --round seconds; the median of the rounds is the figure, their minimum and
// maximum its spread. While one works the other waits without using a core.
//
// With --graph the step is recorded once and replayed (core/gpu/graph.h).
//
// With --checkpoint FILE there is a third kind of turn, of as many steps as --checkpoint-every says
// or a multiple: before each such number of steps the state is saved, and the turn lasts until the
// last file is complete.
//
// With --lanes L there are turns with lanes, and turns with their products alone: chains.
//
// With --trace DIR there are traced turns, timed without writing the files.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "figures.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/lanes.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/launch/launch.h"
#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/tools/cli.h"
#include "peer.h"

namespace bench {
namespace {

using namespace lockstep;
using Clock = std::chrono::steady_clock;

struct Options {
  std::vector<std::int64_t> layers;
  std::int64_t batch = 32;
  std::optional<int> ranks;  // 2, or as many as the launcher started
  cli::DeviceOptions device;
  std::string optimizer = "sgd";
  cli::Precision precision;
  int rounds = 7;
  double round_seconds = 0.5;
  bool graph = false, shard = false, checkpoint_async = false;
  std::string checkpoint, trace;
  std::int64_t checkpoint_every = 50;
  int lanes = 0;
  std::string comm = "auto", transport = "shm", peer, python, json;
};

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  const cli::Check whole = cli::whole_number<int>();
  cli::App app("Times whole training steps of an MLP on random data", "lockstep bench step");
  std::string layers = "64,128,64,10";
  app.add_option("--layers", layers, "Widths, input to output (64,128,64,10)");
  cli::add_options(app, o.device);
  cli::add_options(app, o.precision);
  app.add_option("--batch", o.batch, "Samples per rank (32)").check(whole);
  app.add_option("--ranks", o.ranks, "Replicas (2; in a launcher's world: its size)").check(whole);
  app.add_flag("--graph", o.graph, "Record the step once and replay it (on a GPU)");
  app.add_flag("--shard-optimizer", o.shard, "Each rank steps its part (Optimizer::shard)");
  cli::Option checkpoint =
      app.add_option("--checkpoint", o.checkpoint,
                     "Also time steps with checkpoints, in turns: a file that is replaced");
  app.add_option("--checkpoint-every", o.checkpoint_every, "Steps between two of them (50)")
      .check(whole)
      .needs(checkpoint);
  app.add_flag("--checkpoint-async", o.checkpoint_async, "A thread writes the file")
      .needs(checkpoint);
  app.add_option("--lanes", o.lanes, "Also time steps with so many lanes, in turns").check(whole);
  app.add_option("--trace", o.trace, "Also time steps that are traced, in turns: a folder");
  app.add_option("--optimizer", o.optimizer, "sgd (with momentum 0.9) or adam (sgd)")
      .check(cli::one_of({"sgd", "adam"}));
  app.add_option("--rounds", o.rounds, "Rounds, at least 5 (7)").check(whole);
  app.add_option("--round", o.round_seconds, "Seconds per round (0.5)").check(cli::number());
  app.add_option("--comm", o.comm, fmt::format("{} (auto)", fmt::join(communicator_names(), ", ")))
      .check(cli::one_of(communicator_names()));
  app.add_option("--transport", o.transport, "shm or tcp (shm); between GPUs also ipc")
      .check(cli::one_of({"shm", "tcp", "ipc"}));
  cli::Option peer =
      app.add_option("--peer", o.peer, "pytorch: also time its steps of the same shapes, in turns")
          .check(cli::one_of({"pytorch"}));
  app.add_option("--python", o.python, "A Python with torch ($LOCKSTEP_PYTHON, python3)")
      .needs(peer);
  app.add_option("--json", o.json, "Write a machine-readable summary");
  if (!app.parse(argc, argv)) return {};
  o.layers = cli::widths("--layers", layers);
  const Device device = o.device.choose(0);
  check<UsageError>(o.batch > 0, "--batch must be positive, got {}", o.batch);
  check<UsageError>(!o.ranks || (*o.ranks > 0 && *o.ranks <= dist::max_ranks),
                    "--ranks must be in 1..{}, got {}", dist::max_ranks, o.ranks.value_or(0));
  if (o.graph) {
    check<UsageError>(device.kind != Device::Kind::cpu,
                      "--graph with --device cpu: only a GPU's launches can be recorded");
  }
  check<UsageError>(o.checkpoint_every > 0, "--checkpoint-every must be positive, got {}",
                    o.checkpoint_every);
  check<UsageError>(o.rounds >= 5, "--rounds must be at least 5, got {}", o.rounds);
  check<UsageError>(o.round_seconds > 0 && o.round_seconds <= 60,
                    "--round must be in (0, 60], got {}", o.round_seconds);
  return o;
}

/// One rank's model, data and optimizer; the same numbers as bench/peers/pytorch_step.py.
class Trainer {
 public:
  Trainer(const Options& o, const World& world) : world_(world), factors_(o.precision.factors()) {
    o.precision.apply();
    manual_seed(0);
    for (std::size_t i = 0; i + 1 < o.layers.size(); ++i) {
      if (i > 0) model_.append(nn::ReLU());
      model_.append(nn::Linear(o.layers[i], o.layers[i + 1]));
    }
    const Device device = o.device.choose(world.local_rank());
    model_.to(device);
    const auto parameters = model_.parameters();
    if (o.optimizer == "sgd")
      optimizer_ = std::make_unique<optim::SGD>(parameters,
                                                optim::SGD::Options{.lr = 1e-3, .momentum = 0.9});
    else
      optimizer_ = std::make_unique<optim::Adam>(parameters, optim::Adam::Options{.lr = 1e-3});
    if (!o.graph || o.shard || world.size() > 1)
      ddp_ = std::make_unique<dist::DistributedDataParallel>(parameters, model_.buffers(), world);
    if (o.shard) optimizer_->shard(*ddp_);
    ddp_ ? checkpoint_.emplace(*ddp_) : checkpoint_.emplace();
    checkpoint_->add("model", model_);
    checkpoint_->add("optimizer", *optimizer_);
    Generator generator(1000 + static_cast<std::uint64_t>(world.rank()));
    x_ = Tensor::empty({o.batch, o.layers.front()});
    y_ = Tensor::empty({o.batch}, DType::i64);
    generator.normal(x_, 0, 1);
    generator.randint(0, o.layers.back(), y_);
    x_ = of_samples(x_.to(device));
    y_ = of_samples(y_.to(device));
    loss_ = Tensor::empty({1}, DType::f32, device);
    if (o.graph) graph_.emplace([this] { plain_step(); }, device);
  }
  Trainer(const Trainer&) = delete;  // the graph's step is this trainer's
  Trainer& operator=(const Trainer&) = delete;

  void step() {
    if (graph_)
      (*graph_)();
    else
      plain_step();
  }

  /// Mean over the ranks of the loss of one step. Collective.
  double mean_loss() {
    step();
    const Tensor loss = loss_.to(Device{}).clone();
    world_.communicator().all_reduce(loss, "loss").wait();
    return loss.item() / world_.size();
  }

  /// Microseconds per step of a round, on this rank. All ranks start together.
  double round(std::int64_t steps) {
    world_.communicator().barrier("round").wait();
    const dist::Seconds exposed = world_.communicator().exposed();
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < steps; ++i) step();
    Stream::current(x_.device()).synchronize();
    exposed_us_ =
        1e6 * (world_.communicator().exposed() - exposed).count() / static_cast<double>(steps);
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
           static_cast<double>(steps);
  }

  /// The same, with chain products, and with lanes, if there are any: as many on each rank.
  double round_of(std::int64_t steps, int lanes) {
    if (lanes > 0) {
      lanes_ = std::make_shared<const Lanes>(x_.size(0) * world_.size(), lanes, Shard(world_));
      check<UsageError>(lanes_->rows() == x_.size(0), "--lanes {}: rank {} has {} rows, not {}",
                        lanes, world_.rank(), lanes_->rows(), x_.size(0));
    }
    const kernels::ChainProducts chains;
    const double us = round(steps);
    return lanes_ = nullptr, us;
  }

  /// Of the last round: microseconds per step that this rank's thread spent in communication.
  double exposed_us() const { return exposed_us_; }

  /// The same, traced.
  double traced_round(const Options& o, std::int64_t steps) {
    dist::Trace trace(world_, o.trace, {.most_events = 100'000'000});
    const double us = round(steps);
    trace.write();
    return us;
  }

  /// The same, with a checkpoint before each `o.checkpoint_every` steps.
  double round_with_checkpoints(const Options& o, std::int64_t steps) {
    world_.communicator().barrier("round").wait();
    const auto start = Clock::now();
    for (std::int64_t i = 0; i < steps; ++i) {
      if (i % o.checkpoint_every == 0)
        checkpoint_->save(o.checkpoint, {.async = o.checkpoint_async});
      step();
    }
    Stream::current(x_.device()).synchronize();
    checkpoint_->wait();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() /
           static_cast<double>(steps);
  }

  /// How many steps take about `seconds`: measured by rank 0, agreed by all.
  std::int64_t calibrate(double seconds) {
    for (int i = 0; i < 3; ++i) step();
    const double us = round(5);
    const Tensor steps = Tensor::empty({1}, DType::i64);
    *steps.data<std::int64_t>() = std::max<std::int64_t>(3, std::llround(seconds * 1e6 / us));
    world_.communicator().broadcast(steps, 0, "steps per round").wait();
    return *steps.data<std::int64_t>();
  }

 private:
  void plain_step() {
    const Autocast autocast(factors_);
    const LaneScope scope(lanes_);
    Tape tape;
    const Tensor loss = nn::cross_entropy(model_(x_), y_);
    tape.backward(loss, Weight(x_.size(0), x_.size(0) * world_.size()));
    optimizer_->step();
    optimizer_->zero_grad();
    loss_.copy_from(loss.detach().view({1}));
  }

  const World& world_;
  DType factors_;
  nn::Sequential model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<dist::DistributedDataParallel> ddp_;
  std::optional<nn::Checkpoint> checkpoint_;
  Tensor x_, y_, loss_;
  double exposed_us_ = 0;
  std::shared_ptr<const Lanes> lanes_;
  std::optional<StepGraph> graph_;
};

void print(const Figures& figures) {
  fmt::print("{:<28} {:>12.1f} {:>12.1f} {:>12.1f}\n", figures.name, figures.median(),
             figures.min(), figures.max());
}

std::unique_ptr<Peer> start_peer(const Options& o, int ranks, double our_loss) {
  if (o.peer.empty()) return nullptr;
  const std::string python = find_python(o.python);
  check<UsageError>(!python.empty() || o.python.empty(), "--python '{}' cannot import torch",
                    o.python);
  if (python.empty()) {
    fmt::print(stderr,
               "no Python with torch found (--python, $LOCKSTEP_PYTHON, python3): no peer\n");
    return nullptr;
  }
  auto peer = std::make_unique<Peer>(std::vector<std::string>{
      python, LOCKSTEP_PEER_SCRIPTS "/pytorch_step.py", fmt::format("{}", fmt::join(o.layers, ",")),
      std::to_string(o.batch), std::to_string(ranks), o.optimizer, o.device.choose(0).to_string(),
      o.precision.name});
  const double their_loss = std::strtod(peer->ask("loss", "loss").c_str(), nullptr);
  const double difference = std::abs(their_loss - our_loss);
  check<Error>(difference <= (o.precision.name == "f32" ? 1e-4 : 1e-2) * our_loss,
               "[bench] not the same work: first loss {} here, {} in {}", our_loss, their_loss,
               peer->name());
  return peer;
}

struct AllFigures {
  Figures ours, exposed;
  std::optional<Figures> saving, traced, theirs;
  std::vector<Figures> lanes;  // with --lanes: with them, with chain products alone
};

void report(const Options& o, const World& world, const AllFigures& figures) {
  const auto& [ours, exposed, saving, traced, theirs, lanes] = figures;
  fmt::print("{:<28} {:>12} {:>12} {:>12}\n", "us per step", "median", "min", "max");
  print(ours);
  print(exposed);
  nlohmann::ordered_json json = ours.json();
  json["exposed"] = exposed.json();
  json.update({{"layers", o.layers},
               {"batch", o.batch},
               {"ranks", world.size()},
               {"optimizer", o.optimizer},
               {"comm", o.comm},
               {"transport", world.transport()},
               {"device", o.device.choose(0).to_string()},
               {"precision", o.precision.name},
               {"graph", o.graph},
               {"shard_optimizer", o.shard},
               {"peer", nullptr}});
  if (saving) {
    print(*saving);
    const double ratio = saving->median() / ours.median();
    fmt::print("a checkpoint every {} steps costs {:.1f} %\n", o.checkpoint_every,
               100 * (ratio - 1));
    json["with_checkpoints"] = saving->json();
  }
  for (const Figures& figure : lanes) {
    print(figure);
    fmt::print("  {:.2f} times as long\n", figure.median() / ours.median());
    json["lanes"].push_back(figure.json());
  }
  if (traced) {
    print(*traced);
    fmt::print("a trace costs {:.1f} %\n", 100 * (traced->median() / ours.median() - 1));
    json["traced"] = traced->json();
  }
  if (theirs) {
    print(*theirs);
    const double ratio = theirs->median() / ours.median();
    fmt::print("{} takes {:.2f} times as long\n", theirs->name, ratio);
    json["peer"] = theirs->json();
    json["ratio"] = ratio;
  }
  if (!o.json.empty()) cli::write_json(o.json, json);
}

int run_rank(const Options& o, const World& world) {
  Trainer trainer(o, world);
  const double first_loss = trainer.mean_loss();
  const bool first = world.rank() == 0;
  const std::string precision = o.precision.describe(o.device.choose(0));
  const std::unique_ptr<Peer> peer = first ? start_peer(o, world.size(), first_loss) : nullptr;
  std::int64_t steps = trainer.calibrate(o.round_seconds);
  AllFigures figures{{o.graph ? "Lockstep, recorded" : "Lockstep", {}},
                     {"  of it in communication", {}},
                     {},
                     {},
                     {},
                     {}};
  if (o.lanes > 0) figures.lanes = {{fmt::format("{} lanes", o.lanes), {}}, {"chain products", {}}};
  if (!o.checkpoint.empty()) {
    steps = (steps + o.checkpoint_every - 1) / o.checkpoint_every * o.checkpoint_every;
    figures.saving = Figures{"with checkpoints", {}};
    trainer.round_with_checkpoints(o, o.checkpoint_every);
  }
  if (!o.trace.empty()) figures.traced = Figures{"traced", {}};
  std::int64_t peer_steps = 0;
  if (peer) {
    figures.theirs = Figures{peer->name(), {}};
    peer->round(5);
    peer_steps = std::max<std::int64_t>(3, std::llround(o.round_seconds * 1e6 / peer->round(5)));
  }
  if (first)
    fmt::print("{} | batch {} per rank, {} rank{}, {}{}{} | {} rounds of {} steps{}\n",
               fmt::join(o.layers, "-"), o.batch, world.size(), world.size() == 1 ? "" : "s",
               o.optimizer, precision.empty() ? "" : ", ", precision, o.rounds, steps,
               peer ? ", in turns with the peer" : "");
  for (int i = 0; i < o.rounds; ++i) {
    figures.ours.rounds.push_back(trainer.round(steps));
    figures.exposed.rounds.push_back(trainer.exposed_us());
    if (figures.saving) figures.saving->rounds.push_back(trainer.round_with_checkpoints(o, steps));
    for (Figures& with : figures.lanes)
      with.rounds.push_back(trainer.round_of(steps, &with == &figures.lanes[0] ? o.lanes : 0));
    if (figures.traced) figures.traced->rounds.push_back(trainer.traced_round(o, steps));
    if (peer) figures.theirs->rounds.push_back(peer->round(peer_steps));
  }
  // All ranks stay until the peer has ended its last round.
  world.communicator().barrier("end").wait();
  if (first) report(o, world, figures);
  return 0;
}

int run(int argc, char** argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) return 0;
  const auto environment = dist::read_environment();
  check<UsageError>(!environment || !options->ranks || *options->ranks == environment->size,
                    "--ranks {} in a world of {}", options->ranks.value_or(0),
                    environment ? environment->size : 0);
  if (!environment || environment->rank == 0)
    for (const auto& [name, path] :
         {std::pair("--json", &options->json), std::pair("--checkpoint", &options->checkpoint)})
      cli::check_writable(name, *path);
  const int ranks = options->ranks.value_or(2);
  if (!environment && ranks > 1) return launch::run_this_program({.ranks = ranks}, argc, argv);
  // The ranks wait for one another while the peer starts up and works.
  return run_rank(*options, World::join({.comm = options->comm,
                                         .transport = options->transport,
                                         .timeout = dist::Seconds(600)}));
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return bench::run(argc, argv); });
}
