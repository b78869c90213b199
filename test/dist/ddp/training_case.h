#pragma once
/// Random trainings with everything that DistributedDataParallel can be asked for, compared after
/// each step with one process that trains on the union of the ranks' rows, on the cpu and without
/// it.

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "dist/ddp/halves_hook.h"
#include "lockstep/lockstep.h"
#include "support/expect.h"

namespace lockstep::dist::testing {

/// One step of one rank.
struct RankStep {
  std::int64_t begin = 0, rows = 0;  ///< of the data
  unsigned used = ~0u;               ///< bit k: layer k
};

enum class Hook { none, sum, bf16, halves };

/// What is drawn. Not all of it goes together: draw_training() knows what does.
struct Training {
  int world = 1, layers = 1;
  bool adam = false, recorded = false, deferred = false;
  bool joins = false;        ///< ranks have different numbers of steps
  bool known_total = false;  ///< every Weight has a total
  Hook hook = Hook::none;
  DdpOptions options;
  std::vector<std::vector<RankStep>> ranks;  ///< by rank, then step

  DType dtype() const { return hook == Hook::bf16 ? DType::f32 : DType::f64; }
  std::size_t steps() const {
    std::size_t most = 0;
    for (const auto& rank : ranks) most = std::max(most, rank.size());
    return most;
  }
  /// No rows where a rank has no such step.
  RankStep at(std::size_t rank, std::size_t step) const {
    return step < ranks[rank].size() ? ranks[rank][step] : RankStep{};
  }
  std::int64_t rows(std::size_t step) const {
    std::int64_t sum = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) sum += at(r, step).rows;
    return sum;
  }
};

/// A pure function of the seed. With `gpu`, recorded steps and deferred verdicts, too.
inline Training draw_training(std::uint64_t seed, int most_ranks, bool gpu) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + 1);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Training t;
  t.world = 1 + below(most_ranks);
  t.layers = 1 + below(4);
  t.joins = below(3) == 0;
  t.known_total = !t.joins && below(3) > 0;
  t.recorded = gpu && t.known_total && below(2) == 0;
  t.deferred = gpu && t.known_total && below(2) == 0;
  if (!t.recorded) t.hook = static_cast<Hook>(below(4));
  t.adam = t.hook != Hook::bf16 && below(2) == 0;  // it would turn rounded zeros into whole steps
  const double cap = (1 + below(400)) / double{1 << 20};
  t.options = {.bucket_cap_mb = cap,
               .first_bucket_mb = cap / (1 + below(3)),
               .last_bucket_mb = cap / (1 + below(3)),
               .rebuild_buckets = below(2) == 0,
               .buffers = static_cast<BufferMode>(below(3)),
               .deferred = t.deferred};
  // Buffers travel through the host, which a recorded step refuses.
  if (t.recorded) t.options.buffers = BufferMode::off;
  const int steps = 2 + below(4);
  std::int64_t row = 0;
  for (int r = 0; r < t.world; ++r) {
    t.ranks.emplace_back();
    const int mine = t.joins ? below(steps + 1) : steps;
    const int fixed_rows = 1 + below(4);
    for (int s = 0; s < mine; ++s) {
      RankStep step{row, fixed_rows};
      if (!t.recorded) {
        step.rows = t.known_total || r == 0 ? 1 + below(3) : below(3);
        step.used = 1 + static_cast<unsigned>(below((1 << t.layers) - 1));
      }
      row += step.rows;
      t.ranks.back().push_back(step);
    }
  }
  return t;
}

constexpr std::int64_t columns = 4;

/// Rows of a fixed data set.
inline Tensor data_rows(const RankStep& step) {
  const Tensor x = Tensor::empty({step.rows, columns}, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    x.data<double>()[i] = std::cos(0.7 * static_cast<double>(step.begin * columns + i));
  return x;
}

/// Layers x -> tanh(x w) + b.
struct TrainedLayers {
  std::vector<Parameter> parameters;  // w0, b0, w1, b1, ...

  TrainedLayers(const Training& t, DType dtype, Device device) {
    for (int k = 0; k < 2 * t.layers; ++k) {
      const Tensor value =
          Tensor::empty(k % 2 == 0 ? Shape{columns, columns} : Shape{columns}, DType::f64);
      for (std::int64_t i = 0; i < value.numel(); ++i)
        value.data<double>()[i] = std::sin(static_cast<double>(i + 31 * k + 1)) / 2;
      parameters.emplace_back((dtype == DType::f64 ? value : cast(value, dtype)).to(device),
                              fmt::format("{}{}", k % 2 == 0 ? "w" : "b", k / 2));
    }
  }
  /// The mean over the rows.
  Tensor loss(const Tensor& x, unsigned used) const {
    Tensor y = x;
    for (std::size_t k = 0; k < parameters.size() / 2; ++k)
      if (used >> k & 1) y = tanh(matmul(y, parameters[2 * k])) + parameters[2 * k + 1];
    return mean(y * y);
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> result;
    for (const Parameter& p : parameters)
      result.push_back(cast(p.value().detach().to(Device{}), DType::f64).clone());
    return result;
  }
};

inline std::unique_ptr<optim::Optimizer> optimizer_for(const Training& t,
                                                       const TrainedLayers& model) {
  if (t.adam)
    return std::make_unique<optim::Adam>(model.parameters, optim::Adam::Options{.lr = 0.02});
  return std::make_unique<optim::SGD>(model.parameters,
                                      optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
}

/// The parameters at the start and after each step: one process, one tape, all rows.
inline std::vector<std::vector<Tensor>> train_alone(const Training& t) {
  const TrainedLayers model(t, DType::f64, Device{});
  const auto optimizer = optimizer_for(t, model);
  std::vector<std::vector<Tensor>> result = {model.values()};
  for (std::size_t s = 0; s < t.steps(); ++s) {
    Tape tape;
    Tensor loss;
    for (std::size_t r = 0; r < t.ranks.size(); ++r) {
      const RankStep step = t.at(r, s);
      if (step.rows == 0) continue;
      const Tensor part = scale(model.loss(data_rows(step), step.used),
                                static_cast<double>(step.rows) / static_cast<double>(t.rows(s)));
      loss = loss.defined() ? loss + part : part;
    }
    if (loss.defined()) {
      tape.backward(loss);
      optimizer->step();
      optimizer->zero_grad();
    }
    result.push_back(model.values());
  }
  return result;
}

/// A hook of the user's own: sums, as without a hook.
struct SumHook final : CommunicationHook {
  std::string name() const override { return "sum"; }
  Work reduce(const BucketView& bucket, Communicator& communicator) override {
    return communicator.all_reduce(bucket.memory, bucket.name);
  }
};

inline std::shared_ptr<CommunicationHook> make_hook(Hook hook) {
  switch (hook) {
    case Hook::none: return nullptr;
    case Hook::sum: return std::make_shared<SumHook>();
    case Hook::bf16: return compress(DType::bf16);
    case Hook::halves: return std::make_shared<test::HalvesHook>();
  }
  return nullptr;
}

inline double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double worst = 0;
  for (std::size_t k = 0; k < a.size(); ++k)
    for (std::int64_t i = 0; i < a[k].numel(); ++i)
      worst = std::max(worst, std::abs(a[k].data<double>()[i] - b[k].data<double>()[i]));
  return worst;
}

/// One rank of the training, which checks itself after each step.
class TrainingRank {
 public:
  TrainingRank(const Training& t, Communicator& communicator, Device device)
      : t_(t),
        communicator_(communicator),
        device_(device),
        me_(static_cast<std::size_t>(communicator.rank())),
        model_(t, t.dtype(), device),
        optimizer_(optimizer_for(t, model_)),
        seen_(Tensor::zeros({1}, DType::f64, device)),
        incoming_(Tensor::zeros({1}, DType::f64, device)) {}

  void run(const std::vector<std::vector<Tensor>>& right) {
    DdpOptions options = t_.options;
    options.hook = make_hook(t_.hook);
    DistributedDataParallel ddp(model_.parameters, {Buffer{"seen", seen_}}, communicator_, options);
    StepGraph graph([this] { take_step(); }, device_);
    std::size_t s = 0;
    const auto next = [&] {
      load(s);
      t_.recorded ? (void)graph() : take_step();
      ++s;
      check_parameters(s, right[std::min(s, t_.steps())], right[0]);
      if (t_.rows(s - 1) > 0) check_buffer(s - 1);
    };
    while (s < t_.ranks[me_].size()) next();
    if (t_.joins)
      while (ddp.join()) next();
    ddp.settle();
    const auto digests = gather_text(communicator_, parameter_digest(model_.parameters));
    test::expect(std::ranges::count(digests, digests[0]) == t_.world, "replicas differ");
  }

 private:
  /// What rank r writes into the buffer in step s.
  static double written(std::size_t r, std::size_t s) {
    return static_cast<double>(r) + 10 * static_cast<double>(s) + 0.5;
  }

  /// A recorded step reads the same memory each time.
  void load(std::size_t s) {
    step_ = t_.at(me_, s);
    total_ = t_.rows(s);
    Tensor host = data_rows(step_);
    if (t_.dtype() != DType::f64) host = cast(host, t_.dtype());
    if (t_.recorded && x_.defined())
      x_.copy_from(host);
    else
      x_ = host.to(device_);
    incoming_.copy_from(Tensor::of<double>({1}, {written(me_, s)}));
  }

  void take_step() {
    seen_.copy_from(incoming_);
    const auto mine = static_cast<double>(step_.rows);
    const Weight weight = t_.known_total ? Weight{mine, static_cast<double>(total_)} : Weight{mine};
    Tape tape;
    tape.backward(model_.loss(x_, step_.used), weight);
    optimizer_->step();
    optimizer_->zero_grad();
  }

  void check_parameters(std::size_t s, const std::vector<Tensor>& right,
                        const std::vector<Tensor>& start) const {
    const double off = largest_difference(model_.values(), right);
    const double moved = largest_difference(right, start);
    const double tolerance = t_.hook == Hook::bf16 ? 0.03 * moved + 1e-6 : t_.adam ? 1e-9 : 1e-12;
    test::expect(off <= tolerance, "after step {}: rank {} is off by {}, having moved by {}", s,
                 me_, off, moved);
  }

  void check_buffer(std::size_t s) const {
    double right = written(me_, s);
    if (t_.options.buffers == BufferMode::average) {
      right = 0;
      for (std::size_t r = 0; r < t_.ranks.size(); ++r) right += written(r, s) / t_.world;
    } else if (t_.options.buffers == BufferMode::broadcast) {
      std::size_t source = 0;  // the first rank that has data
      while (t_.at(source, s).rows == 0) ++source;
      right = written(source, s);
    }
    const double mine = seen_.to(Device{}).item();
    test::expect(std::abs(mine - right) < 1e-12, "after step {}: rank {}'s buffer is {}, not {}",
                 s + 1, me_, mine, right);
  }

  const Training& t_;
  Communicator& communicator_;
  Device device_;
  std::size_t me_;
  TrainedLayers model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  Tensor seen_, incoming_, x_;
  RankStep step_;
  std::int64_t total_ = 0;
};

}  // namespace lockstep::dist::testing
