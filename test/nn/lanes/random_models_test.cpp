// Random trainings with lanes, on 1 to 8 ranks: all end with the same bits, or are refused on all
// alike, in the name of the same operation. Audits alarm nobody, and a training may go on in
// another world.

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <mutex>
#include <random>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/lockstep.h"
#include "support/drill.h"
#include "support/temporary_folder.h"

using namespace lockstep;

namespace random_models {
namespace {

constexpr int lanes = 8;

/// A piece of a model: what it makes of (n, c), which is (n, c) again, or (n, width).
using Piece = std::function<Tensor(const Tensor&)>;

struct Model : nn::Module {
  std::vector<std::unique_ptr<nn::Module>> layers;
  std::vector<Parameter> extra;  // of no layer
  std::vector<Piece> pieces;
  DType dtype = DType::f32;

  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (const Piece& piece : pieces) h = piece(h);
    return h;
  }
  void visit(nn::Visitor& p) override {
    for (std::size_t i = 0; i < layers.size(); ++i) p(fmt::format("layer{}", i), *layers[i]);
    for (std::size_t i = 0; i < extra.size(); ++i) p(fmt::format("extra{}", i), extra[i]);
  }
  template <class M>
  Piece add(M layer) {
    nn::Module* const kept = layers.emplace_back(std::make_unique<M>(std::move(layer))).get();
    return [kept](const Tensor& h) { return (*kept)(h); };
  }
  Parameter parameter(const Shape& shape) {
    return extra.emplace_back(cast(Tensor::randn(shape) * 0.3, dtype));
  }
};

/// What a seed draws: the same on every rank, in every world.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed * 7919 + 17) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n));
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 random_;
};

/// What keeps samples apart, or adds them up as it may.
Piece good_piece(Model& m, Draw& draw, std::int64_t c) {
  const DType t = m.dtype;
  switch (draw.below(28)) {
    case 0: return m.add(nn::Linear(c, c, draw.one_in(2), t));
    case 1: return [](const Tensor& h) { return tanh(h); };
    case 2: return [](const Tensor& h) { return gelu(h) + sigmoid(h); };
    case 3: return m.add(nn::LayerNorm(c, 1e-5, t));
    case 4: return m.add(nn::GroupNorm(2, c, 1e-5, t));
    case 5: return m.add(nn::RMSNorm(c, 1e-6, t));
    case 6: return m.add(nn::BatchNorm(c, {.dtype = t}));
    case 7: return m.add(nn::Dropout(0.25));
    case 8: return m.add(nn::Residual(nn::Linear(c, c, true, t)));
    case 9:
      return [p = m.parameter({1, c}), q = m.parameter({c})](const Tensor& h) {
        return h * p + exp(q * 0.5);
      };
    case 10:
      return [p = m.parameter({c, c})](const Tensor& h) { return matmul(h, transpose(tanh(p))); };
    case 11:
      return [p = m.parameter({c, c})](const Tensor& h) {
        return linear(h, p / (norm(p, 1, keepdim) + 0.1));
      };
    case 12: return [](const Tensor& h) { return softmax(h, 1) + log_softmax(h, -1) * 0.1; };
    case 13:
      return [](const Tensor& h) {  // a mask that all samples share
        return h * dropout(Tensor::ones({1, h.size(1)}, h.dtype()), 0.5);
      };
    case 14:
      return [](const Tensor& h) {
        return h + cast(Tensor::randn({h.size(1)}), h.dtype()) *
                       cast(Tensor::rand({1, h.size(1)}), h.dtype());
      };
    case 15:
      return [](const Tensor& h) {  // as many rows as some rank has samples
        return h + mean(cast(Tensor::randn({2, h.size(1)}), h.dtype()), 0);
      };
    case 16: return [](const Tensor& h) { return h - mean(h, 1, keepdim); };
    case 17: return [](const Tensor& h) { return h / (norm(h, 1, keepdim) + 1.0); };
    case 18:
      return [](const Tensor& h) {  // attention within a sample
        const Tensor tokens = reshape(h, {h.size(0), 2, h.size(1) / 2});
        return reshape(matmul(softmax(matmul(tokens, transpose(tokens)), -1), tokens), h.shape());
      };
    case 19:
      return [](const Tensor& h) {
        return cat({slice(h, 1, 1, h.size(1)), select(h, 1, 0).detach().view({h.size(0), 1})}, 1);
      };
    case 20: return [](const Tensor& h) { return flip(h, {1}) + cumsum(h, 1) * 0.1; };
    case 21: return [](const Tensor& h) { return where(h > 0.1, h, h * 0.2); };
    case 22:
      return [layer = m.add(nn::Linear(c, c, true, t))](const Tensor& h) {  // twice
        return layer(relu(layer(h)));
      };
    case 23:
      return [layer = m.add(nn::Linear(c, c, true, t))](const Tensor& h) {
        return checkpoint([layer](const Tensor& x) { return dropout(relu(layer(x)), 0.1); }, h);
      };
    case 24:
      return [p = m.parameter({c, c})](const Tensor& h) {  // rows of a table, by sample
        return h + embedding(p, argmax(h, 1));
      };
    case 25: return [](const Tensor& h) { return h * 0.5 + zeros_like(h) - ones_like(h) / 4.0; };
    case 26:
      return [p = m.parameter({2, c / 2})](const Tensor& h) {
        return reshape(reshape(h, {h.size(0), 2, h.size(1) / 2}) * p, h.shape());
      };
    default: return [](const Tensor& h) { return clamp(h, -2, 2) + square(h) * 0.05; };
  }
}

/// What mixes the samples of several lanes, or would have other bits on other ranks.
Piece bad_piece(Model& m, Draw& draw, std::int64_t c) {
  switch (draw.below(9)) {
    case 0: return [](const Tensor& h) { return h * 0.7 + flip(h, {0}) * 0.3; };
    case 1: return [](const Tensor& h) { return h - mean(h, {0}); };
    case 2: return [](const Tensor& h) { return softmax(h, 0); };
    case 3: return [](const Tensor& h) { return h / (norm(h) + 1.0); };
    case 4: return [](const Tensor& h) { return h + randn_like(h.detach()); };
    case 5: return [](const Tensor& h) { return matmul(matmul(h, transpose(h)), h); };
    case 6: return [](const Tensor& h) { return h - amax(h, 0) * 0.1; };
    case 7: return [](const Tensor& h) { return cumsum(h, 0); };
    default:
      return [p = m.parameter({c})](const Tensor& h) { return h * p + sum(h, 0, keepdim) * 0.1; };
  }
}

struct Plan {
  std::uint64_t seed;
  DType dtype{}, products{};
  std::int64_t batch = 0, width = 0;
  int pieces = 0, bad_at = -1;  // -1: nowhere
  bool bad_unrecorded = false;
  int loss = 0;
  bool adam = false, clipped = false;
};

Plan plan_of(std::uint64_t seed) {
  Draw draw(seed);
  Plan plan{.seed = seed};
  plan.dtype = draw.one_in(3) ? DType::f64 : DType::f32;
  const DType products[] = {DType::f32, DType::f32, DType::bf16, DType::f16};
  plan.products = plan.dtype == DType::f64 ? DType::f32 : products[draw.below(4)];
  plan.batch = 16 + draw.below(20);
  plan.width = 4 + 2 * draw.below(6);
  plan.pieces = 1 + static_cast<int>(draw.below(4));
  plan.bad_at = draw.one_in(4) ? static_cast<int>(draw.below(plan.pieces)) : -1;
  plan.bad_unrecorded = draw.one_in(2);
  plan.loss = static_cast<int>(draw.below(6));
  plan.adam = draw.one_in(2);
  plan.clipped = draw.one_in(3);
  return plan;
}

constexpr std::int64_t samples = 60, features = 6;

Tensor loss_of(int kind, const Tensor& y, const data::Batch& batch) {
  switch (kind) {
    case 0: return nn::cross_entropy(y, batch.y);
    case 1: return nn::mse(slice(y, 1, 0, 4), slice(batch.x, 1, 0, 4));
    case 2: return nn::cross_entropy(y, batch.y) * 0.5 - mean(square(y)) / 4.0;
    case 3: return nn::huber(slice(y, 1, 0, 4), slice(batch.x, 1, 1, 5));
    case 4:
      return nn::cross_entropy(
          y, batch.y,
          {.weight = cast(Tensor::linspace(0.5, 2, y.size(1)), y.dtype()), .ignore_index = 2});
    default: return mean(abs(y)) + sum(square(y)) * 0.01;
  }
}

/// Steps [begin, end) of a training, and the file to go on from, or to save at the end.
struct Part {
  std::int64_t begin, end;
  std::string load, save;
  bool audited = false;  // each step, all ranks compute a lane of the next one, too
};

data::Map data_of(const Plan& plan) {
  Generator generator(plan.seed);
  const Tensor x = Tensor::empty({samples, features}), y = Tensor::empty({samples}, DType::i64);
  generator.normal(x, 0, 1);
  generator.randint(0, 4, y);
  return {data::TensorDataset({{"x", cast(x, plan.dtype)}, {"y", y}}),
          [](data::Fields sample, data::Random& random) {
            sample.set("x", sample["x"] * (1 + 0.1 * random.uniform()));
            return sample;
          },
          plan.seed};
}

/// What a rank ends with.
std::string train(const Plan& plan, World& world, const Part& part) {
  manual_seed(plan.seed);
  Draw draw(plan.seed ^ 0x5555);
  Model m;
  m.dtype = plan.dtype;
  const std::int64_t c = plan.width;
  const bool first = plan.bad_at >= 0 && plan.bad_unrecorded;  // before any layer
  if (first) m.pieces.push_back(bad_piece(m, draw, features));
  m.pieces.push_back(m.add(nn::Linear(features, c, true, plan.dtype)));
  for (int i = 0; i < plan.pieces; ++i)
    m.pieces.push_back(i == plan.bad_at && !first ? bad_piece(m, draw, c) : good_piece(m, draw, c));
  nn::convert_sync_batchnorm(m, world);
  std::unique_ptr<optim::Optimizer> optimizer;
  if (plan.adam)
    optimizer = std::make_unique<optim::Adam>(m.parameters(), optim::Adam::Options{.lr = 0.01});
  else
    optimizer = std::make_unique<optim::SGD>(m.parameters(),
                                             optim::SGD::Options{.lr = 0.05, .momentum = 0.9});
  dist::DistributedDataParallel ddp(m.parameters(), m.buffers(), world);
  dist::Audit audit(ddp, {.every = 1});
  nn::Checkpoint checkpoint(ddp);
  checkpoint.add("model", static_cast<nn::Module&>(m));
  checkpoint.add("optimizer", *optimizer);
  if (!part.load.empty()) checkpoint.load(part.load);

  std::vector<Parameter> gradients;  // the last step's
  const data::Loader loader(data_of(plan), {.batch = plan.batch, .shuffle = true, .lanes = lanes},
                            world);
  for (std::int64_t step = part.begin; step < std::min(part.end, loader.steps()); ++step) {
    const data::Batch batch = loader.batch(step);
    const LaneScope scope(batch.lanes);
    const Autocast autocast(plan.products);
    const auto loss = [&](const data::Batch& b) { return loss_of(plan.loss, m(b.x), b); };
    if (part.audited) {
      audit.backward(loader, batch, loss);
    } else {
      Tape tape;
      tape.backward(loss(batch), batch.weight);
    }
    gradients.clear();
    for (const Parameter& p : m.parameters())
      if (p.gradient_state() != GradientState::nothing)
        gradients.emplace_back(p.gradient().detach().clone(), p.name());
    if (plan.clipped) optim::clip_grad_norm(m.parameters(), 0.5);
    optimizer->step();
    optimizer->zero_grad();
  }
  if (!part.save.empty()) checkpoint.save(part.save);
  std::vector<Parameter> state = m.parameters();
  for (const Buffer& buffer : m.buffers())
    if (buffer.value.dtype() == plan.dtype) state.emplace_back(buffer.value.clone(), buffer.name);
  return parameter_digest(state) + parameter_digest(gradients);
}

/// A hash, or the operation that is refused, as in "[flip]"; and the whole message.
struct Outcome {
  std::string key, message;
};

Outcome outcome_of(const Plan& plan, int ranks, const Part& part = {0, 2, {}, {}}) {
  std::string digest;
  std::mutex mutex;
  try {
    run_threads(ranks, {}, [&](World& world) {
      const std::string mine = train(plan, world, part);
      const std::lock_guard lock(mutex);
      check<Error>(digest.empty() || digest == mine, "[replicas] rank {} has another hash",
                   world.rank());
      digest = mine;
    });
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::size_t by = text.find("was made by [");
    const std::size_t begin = by == std::string::npos ? text.find('[') : by + 12;
    return {text.substr(begin, text.find(']', begin) - begin + 1), text};
  }
  return {digest, digest};
}

}  // namespace

TEST_CASE(
    "drill models: a random training has the same bits on 1 to 8 ranks, or is refused on all" *
    doctest::test_suite("slow")) {
  std::map<std::string, int> refused;
  const test::TemporaryFolder folder;
  test::drill(30, [&](std::uint64_t seed) {
    const Plan plan = plan_of(seed);
    const Outcome one = outcome_of(plan, 1);
    CAPTURE(one.message);
    const bool mixes = plan.bad_at >= 0;
    check<Error>(mixes == one.key.starts_with("["), "seed {}: {}", seed, one.message);
    if (mixes) ++refused[one.key];
    for (const int ranks : {2, 3, 4, 5, 6, 7, 8}) {
      const Outcome other = outcome_of(plan, ranks);
      check<Error>(other.key == one.key, "seed {}: on 1 rank {}, on {} ranks {}", seed, one.message,
                   ranks, other.message);
    }
    if (mixes) return;
    // A step in one world, the next one in another.
    const std::string file = folder / fmt::format("{}.safetensors", seed);
    const int before = 1 + static_cast<int>(seed % 8), after = 1 + static_cast<int>(seed / 3 % 8);
    const Outcome audited = outcome_of(plan, after, {0, 2, {}, {}, true});
    check<Error>(audited.key == one.key, "seed {}: audited on {} ranks: {}, not {}", seed, after,
                 audited.message, one.message);
    (void)outcome_of(plan, before, {0, 1, {}, file});
    const Outcome moved = outcome_of(plan, after, {1, 2, file, {}});
    check<Error>(moved.key == one.key, "seed {}: from {} ranks to {}: {}, not {}", seed, before,
                 after, moved.message, one.message);
  });
  CHECK(!refused.empty());
}

}  // namespace random_models
