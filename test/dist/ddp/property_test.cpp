// Any model, any use of it, any world: the gradients are those of one process on all the data.
// Every case is drawn from a seed (support/drill.h).

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "dist/collectives/exercise.h"
#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/dist/collectives/choice.h"
#include "lockstep/dist/ddp/reducer.h"
#include "lockstep/dist/world/world.h"
#include "support/drill.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;

namespace {

constexpr std::int64_t width = 3;

/// One backward of one rank: its rows, the layers it uses, how it runs.
struct Part {
  std::int64_t begin = 0, rows = 0;  // of the data
  unsigned used = 0;                 // bit k: layer k
  bool twice = false;                // goes through its layers twice: shared weights
  bool recompute = false;            // as a recomputed block
  bool halves = false;               // two forwards, one backward
};

enum class Style {
  known_total,  // one backward per rank, whose total weight everybody knows
  added_up,     // several of these, each of which synchronizes
  window,       // a window of several backwards, weights summed
  mean,         // no weights: the mean over the ranks that have data
};

struct Step {
  Style style = Style::known_total;
  std::vector<std::vector<Part>> parts;  // by rank, then one after another
  std::vector<bool> close;               // by rank: the window is closed by synchronize()
};

struct Case {
  int world = 1;
  int layers = 1;
  std::vector<DType> dtypes;
  DdpOptions options;
  std::string algorithm = "auto";
  bool shared_memory = true;
  std::vector<Step> steps;
};

Case draw(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Case c;
  c.world = 1 + below(7);
  c.layers = 1 + below(5);
  const bool mixed = below(4) == 0;
  for (int k = 0; k < 2 * c.layers; ++k)
    c.dtypes.push_back(mixed && below(2) == 0 ? DType::f32 : DType::f64);
  c.options.bucket_cap_mb = test::mebibytes(1 + below(500));
  c.options.first_bucket_mb = test::mebibytes(1 + below(200));
  c.options.last_bucket_mb = test::mebibytes(1 + below(200));
  c.options.rebuild_buckets = below(2) == 0;
  c.options.nonfinite = static_cast<NonFinite>(below(3));
  std::vector<std::string> names = communicator_names();
  std::erase_if(names, [](const std::string& name) { return !algorithm_named(name); });
  c.algorithm = names[index(below(static_cast<int>(names.size())))];
  c.shared_memory = below(2) == 0;
  const int steps = 1 + below(4);
  std::int64_t row = 0;
  for (int s = 0; s < steps; ++s) {
    Step step{static_cast<Style>(below(4)), {}, {}};
    const bool several = step.style == Style::added_up || step.style == Style::window;
    const int backwards = several ? 1 + below(3) : 1;
    for (int r = 0; r < c.world; ++r) {
      step.parts.emplace_back();
      // Within a window ranks may take different numbers of backwards.
      const int mine = step.style == Style::window ? below(4) : backwards;
      for (int i = 0; i < mine; ++i) {
        const std::int64_t rows = below(4);
        step.parts.back().push_back({row, rows, 1 + static_cast<unsigned>(random()) % 31,
                                     below(3) == 0, below(3) == 0, below(3) == 0});
        row += rows;
      }
      step.close.push_back(step.style == Style::window && (mine == 0 || below(2) == 0));
    }
    c.steps.push_back(step);
  }
  return c;
}

/// Layers x -> tanh(x w) + b, in their own dtypes.
struct Layers {
  std::vector<Parameter> parameters;  // w0, b0, w1, b1, ...
  explicit Layers(const Case& c) {
    for (int k = 0; k < 2 * c.layers; ++k) {
      const Shape shape = k % 2 == 0 ? Shape{width, width} : Shape{width};
      Tensor value = Tensor::empty(shape, DType::f64);
      for (std::int64_t i = 0; i < value.numel(); ++i)
        value.data<double>()[i] = std::sin(static_cast<double>(i + 31 * k + 1)) / 2;
      const DType dtype = c.dtypes[static_cast<std::size_t>(k)];
      parameters.emplace_back(dtype == DType::f64 ? value : cast(value, dtype),
                              fmt::format("{}{}", k % 2 == 0 ? "w" : "b", k / 2));
    }
  }
  Tensor operand(std::size_t k) const {
    const Tensor value = parameters[k];
    return value.dtype() == DType::f64 ? value : cast(value, DType::f64);
  }
  Tensor through(Tensor y, unsigned used) const {
    for (std::size_t k = 0; k < parameters.size() / 2; ++k)
      if (used >> k & 1) y = tanh(matmul(y, operand(2 * k))) + operand(2 * k + 1);
    return y;
  }
  bool reaches(const Part& part) const {
    return (part.used & ((1u << (parameters.size() / 2)) - 1)) != 0;
  }
  Tensor forward(const Part& part, std::int64_t begin, std::int64_t rows) const {
    Tensor x = Tensor::empty({rows, width}, DType::f64);
    for (std::int64_t i = 0; i < x.numel(); ++i)
      x.data<double>()[i] = std::cos(0.7 * static_cast<double>(begin * width + i));
    const auto block = [this, &part](const Tensor& in) {
      const Tensor once = through(in, part.used);
      return part.twice ? through(once, part.used) : once;
    };
    const Tensor y = part.recompute ? checkpoint(block, x) : block(x);
    return mean(y * y);
  }
  /// Mean over the part's rows.
  Tensor loss(const Part& part) const {
    const std::int64_t half = part.rows / 2;
    if (!part.halves || half == 0) return forward(part, part.begin, part.rows);
    const auto weight = [&](std::int64_t rows) {
      return static_cast<double>(rows) / static_cast<double>(part.rows);
    };
    return scale(forward(part, part.begin, half), weight(half)) +
           scale(forward(part, part.begin + half, part.rows - half), weight(part.rows - half));
  }
};

double weight_of(Style style, const Part& part) {
  return style == Style::mean ? (part.rows > 0 ? 1 : 0) : static_cast<double>(part.rows);
}

/// One process: one tape, one loss, all data.
std::vector<Tensor> expected(const Case& c, const Step& step) {
  double total = 0;
  for (const auto& rank : step.parts)
    for (const Part& part : rank) total += weight_of(step.style, part);
  const Layers model(c);
  Tape tape;
  Tensor loss = Tensor::zeros({}, DType::f64);
  for (const auto& rank : step.parts)
    for (const Part& part : rank)
      if (part.rows > 0) loss = loss + scale(model.loss(part), weight_of(step.style, part) / total);
  if (loss.gradient_ref().tape != GradientRef::nothing) tape.backward(loss);
  std::vector<Tensor> result;
  for (const Parameter& p : model.parameters) result.push_back(p.gradient());
  return result;
}

void take(const Step& step, const Layers& model, Reducer& reducer, std::size_t rank) {
  const std::vector<Part>& mine = step.parts[rank];
  const auto reaches = [&](const Part& part) { return model.reaches(part); };
  const bool close =
      step.close[rank] || (step.style == Style::window && !std::ranges::all_of(mine, reaches));
  double unreached = 0;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const Part& part = mine[i];
    double total = 0;  // of this backward
    for (const auto& parts : step.parts)
      if (step.style != Style::window)
        for (const Part& p : parts) total += weight_of(step.style, p);
    const bool last = i + 1 == mine.size();
    const bool sync = step.style != Style::window || (last && !close);
    if (!model.reaches(part)) {  // its loss depends on no parameter, but its rows count
      if (step.style == Style::window)
        unreached += weight_of(step.style, part);
      else
        reducer.synchronize(weight_of(step.style, part));
      continue;
    }
    std::optional<Weight> weight;
    if (step.style == Style::window || part.rows == 0)
      weight = Weight{weight_of(step.style, part)};
    else if (step.style != Style::mean)
      weight = Weight{weight_of(step.style, part), total};
    Tape tape;
    tape.backward(model.loss(part), weight, {.sync = sync});
  }
  if (close) reducer.synchronize(unreached);
}

double largest(const Tensor& tensor) {
  double result = 0;
  for (const double value : cast(tensor, DType::f64).to_vector<double>())
    result = std::max(result, std::abs(value));
  return result;
}

void run_rank(const Case& c, Communicator& communicator) {
  const Layers model(c);
  Reducer reducer(model.parameters, communicator, c.options);
  for (std::size_t s = 0; s < c.steps.size(); ++s) {
    for (const Parameter& p : model.parameters) p.zero_grad();
    take(c.steps[s], model, reducer, index(communicator.rank()));
    const std::vector<Tensor> right = expected(c, c.steps[s]);
    for (std::size_t k = 0; k < right.size(); ++k) {
      const Parameter& p = model.parameters[k];
      const Tensor mine = p.gradient();
      check<Error>(mine.defined() == right[k].defined(), "step {}, rank {}: '{}' has {}, should {}",
                   s, communicator.rank(), p.name(), mine.defined(), right[k].defined());
      if (!mine.defined()) continue;
      check<Error>(p.gradient_state() == GradientState::synchronized, "'{}' is local", p.name());
      const double off = largest(sub(mine, right[k])), scale_of = std::max(1e-3, largest(right[k]));
      check<Error>(off < (mine.dtype() == DType::f64 ? 1e-13 : 1e-5) * scale_of,
                   "step {}, rank {}: '{}' is off by {} of {}", s, communicator.rank(), p.name(),
                   off, scale_of);
    }
  }
}

}  // namespace

TEST_CASE("drill gradients-simulated: any case on a simulated world equals one process" *
          doctest::test_suite("slow")) {
  test::drill(100, [](std::uint64_t seed) {
    const Case c = draw(seed);
    const SimOptions options{.seed = seed, .size = c.world, .shared_memory = c.shared_memory};
    test::run_simulated(
        options, [&](Communicator& communicator) { run_rank(c, communicator); },
        testing::options_for(*algorithm_named(c.algorithm), c.world));
  });
}

TEST_CASE("drill gradients-threads: any case on threads equals one process on the union" *
          doctest::test_suite("slow")) {
  test::drill(40, [](std::uint64_t seed) {
    const Case c = draw(1000 + seed);
    run_threads(c.world, {.comm = c.algorithm},
                [&](World& world) { run_rank(c, world.communicator()); });
  });
}
