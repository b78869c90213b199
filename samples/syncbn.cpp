// `./lockstep sample syncbn`: batch normalization when the batch lies on several ranks.
//
// BatchNorm normalizes with the mean and the variance of the batch it is given. Under data
// parallelism that is the rank's own part: N ranks with B rows each do not train the model that one
// process with N * B rows trains, however well gradients are averaged, and with few rows per rank
// the statistics are mostly noise. SyncBatchNorm merges the ranks' statistics: one message in
// forward (count, mean and squared deviations per channel), and one in backward, since every row's
// output now depends on every rank's rows.
//
//   union      BatchNorm in one process, on all ranks' rows
//   sync       SyncBatchNorm over the ranks, which have different numbers of rows
//   batchnorm  BatchNorm on every rank's own rows

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;

constexpr std::int64_t channels = 6;
constexpr double rounding = 1e-6, visible = 1e-3;  // of the largest value

/// Rows per rank: uneven, and one rank in four has none.
std::int64_t rows_of(int rank) {
  return std::array{5, 3, 7, 0}[static_cast<std::size_t>(rank % 4)];
}

struct Data {
  Tensor x, upstream;  // (rows, channels): the input, and the gradient of the output

  Data rows(std::int64_t begin, std::int64_t end) const {
    return {x.slice(begin, end), upstream.slice(begin, end)};
  }
};

/// All ranks' rows. Each rank's rows have another mean, as may happen when data is not shuffled
/// well.
Data draw(int ranks, std::uint64_t seed) {
  Generator generator(seed);
  std::vector<float> x, upstream;
  for (int rank = 0; rank < ranks; ++rank)
    for (std::int64_t row = 0; row < rows_of(rank); ++row) {
      const Tensor values = Tensor::empty({2 * channels});
      generator.normal(values, 0.5 * rank, 1 + 0.25 * rank);
      const auto drawn = values.span<float>();
      x.insert(x.end(), drawn.begin(), drawn.begin() + channels);
      upstream.insert(upstream.end(), drawn.begin() + channels, drawn.end());
    }
  const auto rows = static_cast<std::int64_t>(x.size()) / channels;
  return {Tensor::of({rows, channels}, x), Tensor::of({rows, channels}, upstream)};
}

/// What comes out of one training step of a layer.
enum Quantity {
  output,
  gradient_x,
  gradient_weight,
  gradient_bias,
  running_mean,
  running_var,
  count
};
constexpr std::array<const char*, count> names = {
    "output",           "gradient of x", "gradient of weight",
    "gradient of bias", "running mean",  "running variance"};
using Results = std::array<std::vector<double>, count>;

std::vector<double> values_of(const Tensor& tensor) {
  const std::vector<float> values = tensor.to_vector<float>();
  return {values.begin(), values.end()};
}

/// Collective if the layer is synchronized.
Results train(nn::BatchNorm layer, const Data& data, Device device) {
  layer.to(device);
  Tape tape;
  const Tensor x = tape.watch(data.x.to(device));
  const Tensor y = layer(x);
  tape.backward(sum(y * data.upstream.to(device)));  // whose gradient with respect to y is upstream
  return {values_of(y),
          values_of(tape.gradient(x)),
          values_of(layer.weight.gradient()),
          values_of(layer.bias.gradient()),
          values_of(layer.running_mean),
          values_of(layer.running_var)};
}

/// The part of the union's results that a rank should have: of those with a row per sample, its own
/// rows.
std::vector<double> expected(const Results& all, std::size_t quantity, std::int64_t first_row,
                             std::int64_t rows) {
  const std::vector<double>& values = all[quantity];
  if (quantity != output && quantity != gradient_x) return values;
  const auto begin = values.begin() + first_row * channels;
  return {begin, begin + rows * channels};
}

/// Per quantity, the largest difference between a rank's and the union's, over the union's largest
/// value. Collective: gradients of parameters are summed over the ranks first, as DDP would.
std::vector<double> differences(Results mine, const Results& all, std::int64_t first_row,
                                const World& world) {
  for (const Quantity quantity : {gradient_weight, gradient_bias}) {
    const Tensor sums = Tensor::of({channels}, mine[quantity]);
    world.communicator().all_reduce(sums, names[quantity]).wait();
    mine[quantity] = sums.to_vector<double>();
  }
  std::vector<double> result(count);
  for (std::size_t quantity = 0; quantity < count; ++quantity) {
    const auto wanted = expected(all, quantity, first_row, rows_of(world.rank()));
    double scale = 0;
    for (const double value : all[quantity]) scale = std::max(scale, std::abs(value));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const double difference = std::abs(mine[quantity][i] - wanted[i]) / scale;
      if (!(difference <= result[quantity])) result[quantity] = difference;  // NaN, too
    }
  }
  std::vector<double> largest(count);
  for (const auto& of_rank : samples::gather(world, result))
    for (std::size_t quantity = 0; quantity < count; ++quantity)
      if (!(of_rank[quantity] <= largest[quantity])) largest[quantity] = of_rank[quantity];
  return largest;
}

double largest(const std::vector<double>& differences) {
  return *std::max_element(differences.begin(), differences.end());
}

void print(const World& world, const std::vector<double>& sync, const std::vector<double>& plain) {
  std::string rows;
  for (int rank = 0; rank < world.size(); ++rank)
    rows += fmt::format("{}{}", rank > 0 ? ", " : "", rows_of(rank));
  fmt::print(
      "Batch normalization over {} rank{} with {} rows: largest difference from one process\n"
      "with all rows, over the largest value\n\n",
      world.size(), world.size() == 1 ? "" : "s", rows);
  fmt::print("{:<20}{:>16}{:>16}\n", "", "SyncBatchNorm", "BatchNorm");
  for (std::size_t quantity = 0; quantity < count; ++quantity)
    fmt::print("{:<20}{:>16.1e}{:>16.1e}\n", names[quantity], sync[quantity], plain[quantity]);
  fmt::print("\n");
}

void run_rank(const samples::RunOptions& options, std::uint64_t seed, const World& world) {
  const Device device = options.device.choose(world.local_rank());
  const Data all = draw(world.size(), seed);
  std::int64_t first_row = 0;
  for (int rank = 0; rank < world.rank(); ++rank) first_row += rows_of(rank);
  const Data mine = all.rows(first_row, first_row + rows_of(world.rank()));

  const Results one_process = train(nn::BatchNorm(channels), all, device);
  const auto sync =
      differences(train(nn::SyncBatchNorm(channels, world.communicator()), mine, device),
                  one_process, first_row, world);
  const auto plain =
      differences(train(nn::BatchNorm(channels), mine, device), one_process, first_row, world);
  if (world.rank() != 0) return;

  print(world, sync, plain);
  if (!options.json.empty())
    cli::write_json(options.json,
                    {{"syncbn_vs_union", largest(sync)}, {"batchnorm_vs_union", largest(plain)}});
  samples::Comparison comparison;
  comparison.claim("SyncBatchNorm is BatchNorm on the union", largest(sync) <= rounding);
  // A single rank's rows are the union.
  comparison.claim("BatchNorm per rank is not", world.size() == 1 || largest(plain) > visible);
  (void)comparison.verdict();
  fmt::print("SyncBatchNorm is BatchNorm on the union, to {:.1e}; BatchNorm per rank {}.\n",
             largest(sync),
             world.size() == 1 ? "is, too: there is one rank"
                               : fmt::format("is off by {:.1e}", largest(plain)));
}

int run(int argc, char** argv) {
  samples::RunOptions options;
  std::uint64_t seed = 0;
  cli::App app("Batch normalization when the batch lies on several ranks",
               "lockstep sample syncbn");
  app.add_option("--seed", seed, "Seed of the data (0)").check(cli::whole_number<std::uint64_t>());
  samples::add_options(app, options, "2; in a launcher's world: its size");
  if (!samples::parse(app, options, argc, argv)) return 0;
  return samples::run_ranks(options, 2, argc, argv,
                            [&](const World& world) { run_rank(options, seed, world); });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
