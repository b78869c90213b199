#include "lockstep/samples/common/simulated.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/simulated/simulated_world.h"
#include "lockstep/lockstep.h"
#include "lockstep/tools/temporary_folder.h"
#include "lockstep/tools/trace/steps.h"

namespace lockstep::samples {
namespace {

constexpr int most_layers = 40;

void compute(dist::HostCommunicator& communicator, double milliseconds) {
  dist::compute(communicator.transport(), dist::Seconds(milliseconds / 1e3));
}

/// An operation with two parameters that takes time, and whose gradients are 1.
Tensor layer(std::size_t number, const Tensor& x, const Parameter& weight, const Parameter& bias,
             dist::HostCommunicator& communicator, double milliseconds) {
  static const std::vector<std::string> names = [] {  // a tape keeps a name's address
    std::vector<std::string> all;
    for (int k = 0; k < most_layers; ++k) all.push_back(fmt::format("layer {}", k));
    return all;
  }();
  if (trace::here.recorder) trace::here.recorder->kernel_begins();
  compute(communicator, milliseconds);
  const Tensor w = weight, b = bias;
  return record(names.at(number).c_str(), Tensor::full({1}, 1), {&x, &w, &b},
                [&communicator, milliseconds](Gradients& gradients) {
                  compute(communicator, 2 * milliseconds);
                  for (const int input : {0, 1, 2})
                    if (const auto into = gradients.into(input)) into.tensor.fill(1);
                });
}

void train(const SimulatedTraining& training, dist::HostCommunicator& communicator,
           const std::string& folder) {
  std::vector<Parameter> parameters;
  for (int k = 0; k < training.layers; ++k) {
    parameters.emplace_back(Tensor::full({training.elements}, 1), fmt::format("{}.weight", k));
    parameters.emplace_back(Tensor::full({24}, 1), fmt::format("{}.bias", k));
  }
  const double cap =
      static_cast<double>(training.layers_of_a_bucket * (training.elements + 48)) * sizeof(float);
  constexpr double mebibyte = 1 << 20;
  dist::Reducer reducer(parameters, communicator,
                        {.bucket_cap_mb = cap / mebibyte,
                         .first_bucket_mb = cap / mebibyte,
                         .last_bucket_mb = (cap - 100) / mebibyte});
  optim::SGD optimizer(parameters, {.lr = 0.1});
  const dist::Trace trace(communicator, folder);
  const bool last = communicator.rank() + 1 == communicator.size();
  const double milliseconds = training.milliseconds * (last ? training.slower : 1);
  for (int step = 0; step < training.steps; ++step) {
    Tape tape;
    Tensor x = Tensor::full({1}, 1);
    for (std::size_t k = 0; k < parameters.size(); k += 2)
      x = layer(k / 2, x, parameters[k], parameters[k + 1], communicator, milliseconds);
    tape.backward(x, Weight(1), {.sync = training.overlap});
    if (!training.overlap) reducer.synchronize();
    {
      const trace::Slice slice(trace::Kind::optimizer, "step");
      compute(communicator, training.milliseconds / 2);
      trace::Recorder* const recorder = std::exchange(trace::here.recorder, nullptr);
      optimizer.step();  // it is part of that slice
      trace::here.recorder = recorder;
    }
    optimizer.zero_grad();
  }
}

}  // namespace

std::vector<traces::RankTrace> run(const SimulatedTraining& training) {
  const cli::TemporaryFolder folder("lockstep-walk");
  const dist::SimReport report =
      dist::simulate({.seed = 7,
                      .size = training.ranks,
                      .channel_bytes = std::size_t{1} << 20,
                      .max_delay = dist::Seconds(training.message / 1e3),
                      .bytes_per_second = 1e6 * training.bandwidth},
                     [&](int, std::unique_ptr<dist::Transport> transport) {
                       dist::HostCommunicator communicator(std::move(transport),
                                                           {.algorithm = dist::Algorithm::ring});
                       train(training, communicator, folder.path());
                     });
  for (const std::exception_ptr& error : report.errors)
    if (error) std::rethrow_exception(error);
  return traces::read_traces(folder.path());
}

SimulatedCost cost_of(const SimulatedTraining& training) {
  const std::vector<traces::RankTrace> all = run(training);
  const std::vector<traces::Step> steps = traces::steps_of(all);
  const double microseconds = 1e3 * static_cast<double>(steps.size());
  SimulatedCost worst;
  for (const traces::RankFigures& rank : traces::figures_of(all, steps)) {
    worst.step = std::max(worst.step, rank.time / microseconds);
    worst.exposed = std::max(worst.exposed, rank.exposed / microseconds);
  }
  return worst;
}

}  // namespace lockstep::samples
