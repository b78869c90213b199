// `./lockstep sample accumulate_vs_ddp`: one process that accumulates the gradients of N
// micro-batches, each loss weighted 1/N, and N ranks with one micro-batch each hold the same
// gradients.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/kernels/clip.h"
#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/samples/common/figures.h"
#include "lockstep/samples/common/fixture.h"
#include "lockstep/samples/common/ranks.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;
using samples::Field;
using samples::fixed;

constexpr int decimals = 4;  // as published
/// Sums of a few f32 numbers in another order differ by less, relative to the largest gradient.
constexpr double rounding = 1e-5;

struct Experiment {
  Tensor encoder_weight, encoder_bias, decoder_weight, decoder_bias;
  std::vector<Tensor> pixels;  // [sample]: (1, in)
  std::vector<Tensor> labels;  // [sample]: (positions,) i64
};

Experiment read(const Field& fixture) {
  Experiment e;
  const Shape pixels = fixture["pixels_shape"].shape(2), labels = fixture["labels_shape"].shape(),
              encoder = fixture["encoder_weight_shape"].shape(2),
              decoder = fixture["decoder_weight_shape"].shape(2);
  if (labels[0] != pixels[0])
    fixture["labels_shape"].refuse(
        fmt::format("is {}, but there are {} samples", labels, pixels[0]));
  if (encoder[1] != pixels[1] || decoder[1] != encoder[0])
    fixture["encoder_weight_shape"].refuse(
        fmt::format("is {}, pixels_shape {} and decoder_weight_shape {}: they do not fit", encoder,
                    pixels, decoder));
  e.encoder_weight = fixture["encoder_weight"].tensor(encoder);
  e.encoder_bias = fixture["encoder_bias"].tensor({encoder[0]});
  e.decoder_weight = fixture["decoder_weight"].tensor(decoder);
  e.decoder_bias = fixture["decoder_bias"].tensor({decoder[0]});
  const std::int64_t positions = labels.numel() / labels[0];
  const Tensor all_pixels = fixture["pixels"].tensor(pixels);
  const Tensor all_labels = fixture["labels"].labels({labels[0], positions}, decoder[0]);
  for (std::int64_t sample = 0; sample < pixels[0]; ++sample) {
    e.pixels.push_back(all_pixels.slice(sample, sample + 1));
    e.labels.push_back(all_labels.slice(sample, sample + 1).view({positions}));
  }
  return e;
}

struct Net : nn::Module {
  explicit Net(const Experiment& e)
      : encoder(e.encoder_weight.size(1), e.encoder_weight.size(0)),
        decoder(e.decoder_weight.size(1), e.decoder_weight.size(0)) {
    encoder.weight.value().copy_from(e.encoder_weight);
    encoder.bias.value().copy_from(e.encoder_bias);
    decoder.weight.value().copy_from(e.decoder_weight);
    decoder.bias.value().copy_from(e.decoder_bias);
  }
  Tensor forward(const Tensor& x) override { return decoder(encoder(x)); }
  void visit(nn::Visitor& p) override {
    p("encoder", encoder);
    p("decoder", decoder);
  }

  nn::Linear encoder, decoder;
};

/// The mean over the positions, each of which sees the same logits (1, classes).
Tensor loss_of(Net& net, const Experiment& e, std::size_t sample, Device device) {
  const Tensor logits = net(e.pixels[sample].to(device));
  const Tensor labels = e.labels[sample].to(device);
  return nn::cross_entropy(broadcast_to(logits, {labels.numel(), logits.size(1)}), labels);
}

/// What a process holds after its backwards.
struct Held {
  std::vector<std::string> names;            // of the parameters
  std::vector<double> norms;                 // per parameter
  std::vector<std::vector<float>> elements;  // per parameter
};

Held gradients_of(Net& net, Device device) {
  Held result;
  const Tensor norm = Tensor::empty({}, DType::f64, device);
  for (const Parameter& parameter : net.parameters()) {
    const Tensor gradient = parameter.gradient();
    kernels::global_norm({&gradient, 1}, norm);
    result.names.push_back(parameter.name());
    result.norms.push_back(norm.item());
    result.elements.push_back(gradient.to_vector<float>());
  }
  return result;
}

Held accumulate(const Experiment& e, Device device) {
  Net net(e);
  net.to(device);
  const auto count = static_cast<double>(e.pixels.size());
  for (std::size_t sample = 0; sample < e.pixels.size(); ++sample) {
    Tape tape;
    tape.backward(loss_of(net, e, sample, device), Weight{1, count});
  }
  return gradients_of(net, device);
}

/// Collective: the rank's own sample alone, and DDP.
Held synchronize(const Experiment& e, const World& world, Device device) {
  Net net(e);
  net.to(device);
  const dist::DistributedDataParallel ddp(net.parameters(), net.buffers(), world);
  Tape tape;
  tape.backward(loss_of(net, e, static_cast<std::size_t>(world.rank()), device));
  return gradients_of(net, device);
}

/// The largest difference between elements, and the largest element.
struct Difference {
  double largest = 0, scale = 0;
};

Difference difference_of(const Held& a, const Held& b) {
  Difference result;
  for (std::size_t k = 0; k < a.elements.size(); ++k)
    for (std::size_t i = 0; i < a.elements[k].size(); ++i) {
      const double value = a.elements[k][i];
      const double difference = std::abs(value - static_cast<double>(b.elements[k][i]));
      result.largest = samples::larger(result.largest, difference);
      result.scale = std::max(result.scale, std::abs(value));
    }
  return result;
}

/// The norms of every process that has gradients, for rank 0 to print.
struct Norms {
  std::vector<std::string> parameters;
  std::vector<double> accumulated;
  std::vector<std::vector<double>> ranks;  // [rank][parameter]
};

void print(const Norms& norms, const Field* published) {
  fmt::print("{:<16}{:>13}", "parameter", "accumulated");
  for (std::size_t rank = 0; rank < norms.ranks.size(); ++rank)
    fmt::print("{:>10}", fmt::format("rank {}", rank));
  fmt::print("{}\n", published ? fmt::format("{:>12}", "published") : "");
  for (std::size_t k = 0; k < norms.parameters.size(); ++k) {
    const std::string& name = norms.parameters[k];
    fmt::print("{:<16}{:>13}", name, fixed(norms.accumulated[k], decimals));
    for (const auto& of_rank : norms.ranks) fmt::print("{:>10}", fixed(of_rank[k], decimals));
    if (published && published->has(name))
      fmt::print("{:>12}", fixed((*published)[name].number(), decimals));
    fmt::print("\n");
  }
  fmt::print("\n");
}

void write_json(const std::string& path, const Norms& norms) {
  const auto by_name = [&](const std::vector<double>& values) {
    nlohmann::ordered_json object;
    for (std::size_t k = 0; k < values.size(); ++k) object[norms.parameters[k]] = values[k];
    return object;
  };
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const auto& of_rank : norms.ranks) ranks.push_back(by_name(of_rank));
  cli::write_json(path, {{"accumulated", by_name(norms.accumulated)}, {"ranks", ranks}});
}

void compare(samples::Comparison& comparison, const Norms& norms, const Field& published) {
  for (std::size_t k = 0; k < norms.parameters.size(); ++k) {
    const std::string& name = norms.parameters[k];
    const double figure = published[name].number();
    comparison.expect("accumulated, norm of " + name, norms.accumulated[k], figure, decimals);
    for (std::size_t rank = 0; rank < norms.ranks.size(); ++rank)
      comparison.expect(fmt::format("rank {}, norm of {}", rank, name), norms.ranks[rank][k],
                        figure, decimals);
  }
}

void run_rank(const Field& fixture, const Experiment& experiment,
              const samples::RunOptions& options, const World& world) {
  const Device device = options.device.choose(world.local_rank());
  const Held accumulated = accumulate(experiment, device),
             synchronized = synchronize(experiment, world, device);
  Norms norms{accumulated.names, accumulated.norms, samples::gather(world, synchronized.norms)};
  const Difference own = difference_of(accumulated, synchronized);
  double largest = 0;
  for (const auto& of_rank : samples::gather(world, {own.largest}))
    largest = samples::larger(largest, of_rank[0]);
  if (world.rank() != 0) return;

  fmt::print(
      "Norms of the gradients: {0} micro-batches accumulated in one process, and {0} ranks with "
      "one each\n\n",
      world.size());
  std::optional<Field> published;
  if (fixture.has("expected_grad_norms")) published = fixture["expected_grad_norms"];
  print(norms, published ? &*published : nullptr);
  fmt::print("largest difference of an element between the process and a rank: {:.2g}\n", largest);
  if (!options.json.empty()) write_json(options.json, norms);
  samples::Comparison comparison;
  if (published) compare(comparison, norms, *published);
  comparison.claim("the gradients are the same but for rounding", largest <= rounding * own.scale);
  fmt::print("The same gradients. {}\n", comparison.verdict());
}

int run(int argc, char** argv) {
  samples::RunOptions options;
  std::string path = LOCKSTEP_SAMPLES_DATA "/fixtures/accumulate_vs_ddp.json";
  cli::App app("Gradient accumulation against data parallelism",
               "lockstep sample accumulate_vs_ddp");
  app.add_option("--fixture", path,
                 "The experiment (samples/data/fixtures/accumulate_vs_ddp.json)");
  samples::add_options(app, options, "as many as the fixture has samples");
  if (!samples::parse(app, options, argc, argv)) return 0;
  const Field fixture = Field::read(path);
  const Experiment experiment = read(fixture);
  samples::set_ranks(options, static_cast<int>(experiment.pixels.size()), "the fixture");
  return samples::run_ranks(options, 1, argc, argv, [&](const World& world) {
    run_rank(fixture, experiment, options, world);
  });
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
