#include "train.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "lockstep/core/system/file_kind.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/lockstep.h"
#include "progress.h"
#include "state.h"

namespace train_mlp {
namespace {

using namespace lockstep;

std::shared_ptr<dist::CommunicationHook> make_hook(const std::string& name) {
  if (name == "bf16") return dist::compress(DType::bf16);
  if (name == "f16") return dist::compress(DType::f16);
  return nullptr;
}

/// What makes every wait longer, whatever the transport.
std::string shared_cores(const World& world) {
  const unsigned cores = std::thread::hardware_concurrency();
  if (static_cast<unsigned>(world.local_size()) <= cores) return "";
  return fmt::format(" ({} ranks share {} cores, and wait for them)", world.local_size(), cores);
}

/// The share of `set` that the model classifies rightly: every rank counts its own part, none
/// twice.
double accuracy(nn::Module& model, const data::TensorDataset& set, const World& world,
                Device device) {
  constexpr std::int64_t chunk = 512;  // rows at a time, to bound the memory
  const dist::Range mine = dist::partition(set.size(), world.size(), world.rank());
  const Tensor right = Tensor::zeros({1}, DType::i64);
  const bool was_training = model.training();
  model.eval();
  for (std::int64_t begin = mine.begin; begin < mine.end; begin += chunk) {
    const std::int64_t end = std::min(begin + chunk, mine.end);
    const Tensor guess = Tensor::empty({end - begin}, DType::i64, device);
    kernels::argmax(model(set["x"].slice(begin, end).to(device)), guess);
    const auto labels = set["y"].slice(begin, end).span<std::int64_t>();
    const auto guesses = guess.to_vector<std::int64_t>();
    for (std::size_t i = 0; i < labels.size(); ++i)
      *right.data<std::int64_t>() += guesses[i] == labels[i];
  }
  model.train(was_training);
  world.communicator().all_reduce(right, "right answers").wait();
  return set.size() ? right.item() / static_cast<double>(set.size()) : 0;
}

std::vector<Replica> replicas(const std::vector<Parameter>& parameters, const World& world) {
  const std::string mine = fmt::format("{} {}", ::getpid(), parameter_digest(parameters));
  std::vector<Replica> all;
  for (const std::string& text : dist::gather_text(world.communicator(), mine)) {
    const std::size_t space = text.find(' ');
    all.push_back(
        {static_cast<int>(all.size()), std::stoi(text.substr(0, space)), text.substr(space + 1)});
  }
  return all;
}

/// A run in one world.
class Training {
 public:
  Training(State& state, const World& world);
  Result run();

 private:
  void begin_progress();
  void resume();
  void epoch();
  bool records() const;
  Tensor recorded_step(const data::Batch& batch);
  void plain_step(const data::Loader& loader, const data::Batch& batch);
  void step();
  void settle(std::int64_t last);
  void save();
  bool save_is_due() const {
    return options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0;
  }
  void finish();

  State& state_;
  const Options& options_ = state_.options;
  const World& world_;
  data::TrainTest& set_ = state_.set;
  const std::vector<std::int64_t>& layers_ = state_.layers;
  const Device device_ = state_.device;
  nn::Sequential& model_ = state_.model;
  std::vector<Parameter> parameters_;
  std::unique_ptr<optim::Optimizer>& optimizer_ = state_.optimizer;
  dist::DistributedDataParallel ddp_;
  std::optional<dist::Audit> audit_;
  std::optional<optim::GradScaler>& scaler_ = state_.scaler;
  std::optional<nn::RecordedSteps> recorded_;
  std::int64_t &epoch_ = state_.epoch, &position_ = state_.position, &step_ = state_.step;
  std::int64_t seed_, samples_in_set_, precision_, lanes_;
  nn::Checkpoint checkpoint_;
  Progress progress_;
  std::optional<nn::Metrics> metrics_;
  std::optional<dist::HashTrace> hashes_;
  bool goes_on_ = world_.generation() > 0 && position_ > 0;  // an epoch that another world began
  Result& result_ = state_.result;
  double &seconds_ = state_.seconds, &samples_ = state_.samples;
  std::uint64_t& bytes_ = state_.bytes;
};

constexpr std::int64_t losses_at_once = 50;  // so that a run that fails has told most of them

constexpr std::string_view precisions[] = {"f32", "tf32", "bf16", "f16"};  // as checkpoints count

std::int64_t number_of(const cli::Precision& precision) {
  return std::ranges::find(precisions, precision.name) - std::begin(precisions);
}

bool is_there(const std::string& path) { return kind_of_file(path) != FileKind::none; }

// A resumed run has the buckets of its checkpoint from the first step.
std::string resumed_layout(const Options& o) {
  return o.resume && is_there(o.checkpoint) ? nn::Checkpoint::manifest(o.checkpoint).bucket_layout
                                            : "";
}

dist::DdpOptions ddp_options(const Options& o) {
  dist::DdpOptions options = o.ddp;
  options.rebuild_buckets = o.plan == "ready";
  options.bucket_layout = resumed_layout(o);
  options.hook = make_hook(o.hook);
  return options;
}

// Before there is a DDP, which takes rank 0's parameters.
const World& joined(State& state, const World& world) {
  if (state.options.survive) state.share(world);
  return world;
}

Training::Training(State& state, const World& world)
    : state_(state),
      world_(joined(state, world)),
      parameters_(model_.parameters()),
      ddp_(parameters_, model_.buffers(), world, ddp_options(options_)),
      seed_(static_cast<std::int64_t>(options_.seed)),
      samples_in_set_(set_.train.size()),
      precision_(number_of(options_.precision)),
      lanes_(options_.lanes),
      checkpoint_(ddp_),
      progress_(world.rank() == 0, options_.epochs) {
  const Options& options = options_;
  checkpoint_.add("model", model_);
  checkpoint_.add("optimizer", *optimizer_);
  for (const auto& [name, number] :
       {std::pair("epoch", &epoch_), std::pair("position", &position_), std::pair("step", &step_),
        std::pair("seed", &seed_), std::pair("samples", &samples_in_set_),
        std::pair("precision", &precision_), std::pair("lanes", &lanes_)})
    checkpoint_.add(name, *number);
  dist::check_same(world.communicator(), "--precision", options.precision.name);
  options.precision.apply();
  if (options.precision.name == "f16") checkpoint_.add("scaler", *scaler_);
  if (options.shard_optimizer) optimizer_->shard(ddp_);
  result_.device = Device::name_of(device_.kind);
  if (options.resume && step_ + epoch_ == 0) resume();
  audit_.emplace(ddp_, dist::AuditOptions{.every = options.audit, .taken = step_});
  // Without --metrics the values still go into a trace.
  // An epoch of an earlier world may lack nothing but its summary, which counts to its last step.
  const bool at_end = world.generation() > 0 && position_ == set_.train.size();
  metrics_.emplace(options.metrics, world.rank() == 0, step_ + (at_end ? 0 : 1));
  if (at_end) metrics_->add("train/loss", step_, result_.losses.back());
  if (!options.hash_trace.empty())
    hashes_.emplace(world, options.hash_trace,
                    dist::HashTraceOptions{.first_step = step_ + 1, .values = options.hash_values});
  if (records()) recorded_.emplace([this](const data::Batch& b) { return recorded_step(b); });
  begin_progress();
}

// What reads each step on the host cannot be in a recorded one: the scale of f16, audits, and
// traces of what is within a step.
bool Training::records() const {
  return options_.record && device_ != Device{} && ddp_.recordable() && !scaler_ &&
         options_.audit == 0 && options_.trace.empty() && options_.hash_trace.empty();
}

void Training::begin_progress() {
  const DType wire = options_.hook == "bf16"  ? DType::bf16
                     : options_.hook == "f16" ? DType::f16
                                              : DType::f32;
  const std::size_t elements = ddp_.buckets().largest() / size_of(DType::f32);
  result_.algorithm = world_.communicator().algorithm(elements * size_of(wire), wire);
  const std::size_t buckets = ddp_.buckets().all().size();
  const bool alone = world_.size() == 1;
  const std::string precision = options_.precision.describe(device_);
  std::int64_t elements_in_all = 0;
  for (const Parameter& parameter : parameters_) elements_in_all += parameter.value().numel();
  progress_.begin(fmt::format(
      "{}: {} parameters in {}\n"
      "{} rank{} with batches of {}{}{}{}{}{}\n"
      "{} training and {} test samples from {}",
      fmt::join(layers_, "-"), elements_in_all,
      buckets == 1 ? "1 bucket" : fmt::format("{} buckets before the first step", buckets),
      world_.size(), alone ? "" : "s", options_.batch,
      options_.lanes == 0
          ? ""
          : fmt::format(" in all, in {} lane{}", options_.lanes, options_.lanes == 1 ? "" : "s"),
      alone
          ? ""
          : fmt::format(", {} all-reduce{} over {}", result_.algorithm,
                        options_.hook == "none" ? "" : " of " + options_.hook, world_.transport()) +
                shared_cores(world_),
      device_ == Device{} ? "" : fmt::format(", on {}", gpu::describe(device_.index)),
      precision.empty() ? "" : ", " + precision, recorded_ ? ", recorded steps" : "",
      set_.train.size(), set_.test.size(), options_.data));
}

// What --resume changes silently would be neither the old run nor the new one.
void Training::resume() {
  const std::string& path = options_.checkpoint;
  if (!is_there(path)) return progress_.note("no '" + path + "' yet: the run begins\n");
  const std::string asked = optimizer_->options_text();
  const auto numbers = nn::Checkpoint::manifest(path).numbers;  // f16 has a part that f32 has not
  if (const auto saved = numbers.find("precision"); saved != numbers.end())
    check<UsageError>(saved->second == precision_,
                      "--resume: {} has --precision {}, this command line {}", path,
                      precisions[static_cast<std::size_t>(saved->second) % std::size(precisions)],
                      options_.precision.name);
  if (const auto saved = numbers.find("lanes"); saved != numbers.end())
    check<UsageError>(saved->second == lanes_, "--resume: {} has --lanes {}, this command line {}",
                      path, saved->second, lanes_);
  checkpoint_.load(path);
  if (options_.survive) state_.mark();
  const std::string texts[] = {asked, optimizer_->options_text()};
  for (const auto& [line, said] : dist::differences(texts))
    fail<UsageError>("--resume: {} has {}, this command line {}", path, said[1].first,
                     said[0].first);
  check<UsageError>(seed_ == static_cast<std::int64_t>(options_.seed),
                    "--resume: {} has seed {}, this command line {}", path, seed_, options_.seed);
  check<UsageError>(samples_in_set_ == set_.train.size(),
                    "--resume: {} was trained on {} samples, '{}' has {}", path, samples_in_set_,
                    options_.data, set_.train.size());
  progress_.note(fmt::format("goes on from '{}': epoch {}, step {}\n", path, epoch_ + 1, step_));
}

void Training::save() {
  checkpoint_.save(options_.checkpoint,
                   {.keep = options_.keep, .async = options_.checkpoint_async});
}

Tensor Training::recorded_step(const data::Batch& batch) {
  const Autocast autocast(options_.precision.factors());
  Tape tape;
  const Tensor loss = nn::cross_entropy(model_(batch.x), batch.y);
  const Tensor parts = dist::LossLog::parts(loss);
  tape.backward(loss, batch.weight);
  optimizer_->step();
  optimizer_->zero_grad();
  return parts;
}

void Training::plain_step(const data::Loader& loader, const data::Batch& batch) {
  const Autocast autocast(options_.precision.factors());
  audit_->backward(loader, batch, [&](const data::Batch& b) {
    const Tensor loss = nn::cross_entropy(model_(b.x), b.y);
    state_.log.add(loss, b.weight);
    return scaler_ ? scaler_->scale(loss) : loss;
  });
  if (options_.survive) settle(step_ + 1);  // the loss of a step that is taken is never lost
  step();
  optimizer_->zero_grad();
}

void Training::step() {
  if (!scaler_) return optimizer_->step();
  scaler_->step(*optimizer_);
  scaler_->update();
}

// The losses since the last call become known. A checkpoint must not cover steps whose losses are
// not yet written down: the run that goes on from it would never know them.
// `last`: the step of the last of them.
void Training::settle(std::int64_t last) {
  const std::vector<dist::LossLog::Step> steps = state_.log.settle(world_);
  std::int64_t step = last - std::ssize(steps);
  for (const dist::LossLog::Step& settled : steps) {
    const double loss = settled.mean();
    state_.loss_sum += settled.sum;
    state_.loss_samples += settled.samples;
    result_.losses.push_back(loss);
    metrics_->add("train/loss", ++step, loss, settled.when);
    check<StateError>(std::isfinite(loss),
                      "the loss of step {} is {}: the training has diverged (a smaller --lr?)",
                      result_.losses.size() - 1, std::abs(loss));
  }
  metrics_->flush();
}

void Training::epoch() {
  const auto start = std::chrono::steady_clock::now();
  const std::uint64_t bytes_before = world_.communicator().bytes_moved();
  const dist::Seconds exposed_before = world_.communicator().exposed();
  data::Loader loader(set_.train,
                      {.batch = options_.batch,
                       .shuffle = options_.shuffle,
                       .seed = options_.seed,
                       .padded = options_.padded,
                       .begin = position_,
                       .lanes = options_.lanes,
                       .device = device_},
                      world_, static_cast<int>(epoch_));
  if (!goes_on_) state_.loss_sum = state_.loss_samples = 0;
  goes_on_ = false;
  std::int64_t done = 0;
  for (const data::Batch& batch : loader) {
    if (recorded_)
      state_.log.add_parts((*recorded_)(batch), batch.weight, batch.lanes.get());
    else
      plain_step(loader, batch);
    position_ = batch.position;
    ++step_;
    if (options_.survive) state_.mark();
    progress_.step(epoch_, ++done, loader.steps());
    const bool saves = save_is_due() && done < loader.steps();
    if (saves || state_.log.waiting() == losses_at_once) settle(step_);
    if (saves) save();
  }
  bytes_ += world_.communicator().bytes_moved() - bytes_before;
  settle(step_);
  result_.train_loss = state_.loss_samples > 0 ? state_.loss_sum / state_.loss_samples : 0;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const dist::Seconds exposed = world_.communicator().exposed() - exposed_before;
  seconds_ += seconds.count();
  samples_ += state_.loss_samples;
  const double train_accuracy = accuracy(model_, set_.train, world_, device_);
  result_.test_accuracy = accuracy(model_, set_.test, world_, device_);
  const double samples_per_second = state_.loss_samples / seconds.count();
  for (const auto& [tag, value] :
       {std::pair("epoch/loss", result_.train_loss), std::pair("train/accuracy", train_accuracy),
        std::pair("test/accuracy", result_.test_accuracy),
        std::pair("train/samples_per_second", samples_per_second),
        std::pair("train/lr", optimizer_->lr()),
        std::pair("train/exposed_share", exposed / seconds)})
    metrics_->add(tag, step_, value);
  metrics_->flush();
  progress_.epoch({.epoch = epoch_,
                   .loss = result_.train_loss,
                   .train_accuracy = train_accuracy,
                   .test_accuracy = result_.test_accuracy,
                   .samples_per_second = samples_per_second});
}

Result Training::run() {
  const std::int64_t begin = epoch_;
  while (epoch_ < options_.epochs) {
    epoch();
    ++epoch_;
    position_ = 0;
    if (save_is_due() && epoch_ < options_.epochs) save();
  }
  if (begin == epoch_) result_.test_accuracy = accuracy(model_, set_.test, world_, device_);
  finish();
  return result_;
}

void Training::finish() {
  const auto steps = static_cast<double>(std::max<std::size_t>(1, result_.losses.size()));
  result_.samples_per_second = seconds_ > 0 ? samples_ / seconds_ : 0;
  result_.bytes_per_step = static_cast<double>(bytes_) / steps;
  result_.buckets = ddp_.buckets().all().size();
  result_.bucket_layout = ddp_.bucket_layout();
  result_.statistics = ddp_.statistics();
  result_.replayed_steps = recorded_ ? recorded_->replays() : 0;
  result_.kernel_launches = gpu::kernel_launches();
  result_.replicas = replicas(parameters_, world_);
  result_.replicas_identical = std::ranges::all_of(result_.replicas, [&](const Replica& replica) {
    return replica.digest == result_.replicas[0].digest;
  });
  if (!options_.save_model.empty())
    ddp_.save_on_rank0([&] { nn::save_safetensors(options_.save_model, model_.state_dict()); });
  if (!options_.checkpoint.empty()) save();
  checkpoint_.wait();
}

}  // namespace

Run::Run(const Options& options, const World& world)
    : state_(std::make_unique<State>(options, world)) {}
Run::~Run() = default;

Result Run::train(const World& world) { return Training(*state_, world).run(); }

}  // namespace train_mlp
