#include "lockstep/samples/walk/simulated.h"

#include <fmt/format.h>

#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/simulated/simulated_world.h"
#include "lockstep/lockstep.h"
#include "lockstep/tools/temporary_folder.h"

namespace lockstep::samples {
namespace {

void compute(dist::HostCommunicator& communicator, double milliseconds) {
  dist::compute(communicator.transport(), dist::Seconds(milliseconds / 1e3));
}

/// An operation with two parameters that takes time, and whose gradients are 1.
Tensor layer(std::size_t number, const Tensor& x, const Parameter& weight, const Parameter& bias,
             dist::HostCommunicator& communicator, double milliseconds) {
  constexpr const char* names[] = {"layer 0", "layer 1", "layer 2", "layer 3", "layer 4"};
  if (trace::current) trace::current->kernel_begins();
  compute(communicator, milliseconds);
  const Tensor w = weight, b = bias;
  return record(names[number], Tensor::full({1}, 1), {&x, &w, &b},
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
  const auto cap = static_cast<std::size_t>(training.elements + 48) * sizeof(float);
  dist::Reducer reducer(parameters, communicator,
                        {.caps = {.bucket = cap, .first = cap, .last = cap - 100}});
  optim::SGD optimizer(parameters, {.lr = 0.1});
  const dist::Trace trace(communicator, folder);
  const bool last = communicator.rank() + 1 == communicator.size();
  const double milliseconds = training.milliseconds * (last ? training.slower : 1);
  for (int step = 0; step < training.steps; ++step) {
    Tape tape;
    Tensor x = Tensor::full({1}, 1);
    for (std::size_t k = 0; k < parameters.size(); k += 2)
      x = layer(k / 2, x, parameters[k], parameters[k + 1], communicator, milliseconds);
    tape.backward(x);
    {
      const trace::Slice slice(trace::Kind::optimizer, "step");
      compute(communicator, training.milliseconds / 2);
      trace::Recorder* const recorder = std::exchange(trace::current, nullptr);
      optimizer.step();  // it is part of that slice
      trace::current = recorder;
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
                      .max_delay = dist::Seconds(training.message / 1e3)},
                     [&](int, std::unique_ptr<dist::Transport> transport) {
                       dist::HostCommunicator communicator(std::move(transport),
                                                           {.algorithm = dist::Algorithm::ring});
                       train(training, communicator, folder.path());
                     });
  for (const std::exception_ptr& error : report.errors)
    if (error) std::rethrow_exception(error);
  return traces::read_traces(folder.path());
}

}  // namespace lockstep::samples
