// `train` on a GPU or in the simulator, against the same training on the cpu.

#include "support/device.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/gpu/gpu.h"
#include "support/program.h"

using namespace lockstep;

namespace {

/// The summary of a short training that must succeed.
nlohmann::json train(std::vector<std::string> options) {
  const auto file =
      std::filesystem::temp_directory_path() / fmt::format("lockstep-device-{}.json", ::getpid());
  options.insert(options.begin(), LOCKSTEP_BIN_DIR "/train_mlp");
  options.insert(options.end(), {"--layers", "64,32,10", "--epochs", "1", "--json", file.string()});
  const test::Ended ended = test::run(options);
  INFO(fmt::format("{}", ended.err));
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(std::ifstream(file));
  std::filesystem::remove(file);
  return summary;
}

}  // namespace

TEST_CASE("train: a device gives the cpu's losses, step by step, and counts its launches") {
  if (test::on_cpu() || gpu::count() == 0) return;
  const std::string device(Device::name_of(test::test_device().kind));
  for (const std::string optimizer : {"sgd", "adam"})
    for (const std::string ranks : {"1", "2", "3"}) {
      INFO(optimizer, " ranks ", ranks);
      const std::vector<std::string> options{"--ranks", ranks, "--optimizer", optimizer};
      auto with = [&](const std::string& name) {
        auto all = options;
        all.insert(all.end(), {"--device", name});
        return train(all);
      };
      const auto here = with(device), expected = with("cpu");
      CHECK(here["device"] == device);
      CHECK(here["replicas_identical"] == true);
      REQUIRE(here["losses"].size() == expected["losses"].size());
      for (std::size_t i = 0; i < expected["losses"].size(); ++i)
        CHECK(std::abs(here["losses"][i].get<double>() - expected["losses"][i].get<double>()) <
              1e-4);
      // Kernels of a replay are not launched one by one.
      const auto steps = here["losses"].size() - here["replayed_steps"].get<std::size_t>();
      // For several ranks the first guess of the loss's gradient, 1, is wrong; and the next one,
      // where shares of a batch differ. A wrong guess is computed again.
      const auto wrong = here["kernel_launches"].value("cross_entropy_backward_kernel", 0u);
      CHECK(wrong <= std::stoul(ranks) - 1);
      CHECK(here["kernel_launches"]["cross_entropy_kernel"] == steps + wrong);
      CHECK(here["kernel_launches"]["optimizer_step_kernel"] == steps);
      CHECK_FALSE(expected.contains("kernel_launches"));
    }
}

TEST_CASE("train: ranks that are threads share the devices") {
  if (test::on_cpu() || gpu::count() == 0) return;
  const std::string device(Device::name_of(test::test_device().kind));
  const auto processes = train({"--ranks", "3", "--device", device});
  const auto threads = train({"--ranks", "3", "--device", device, "--transport", "threads"});
  CHECK(threads["parameter_digest"] == processes["parameter_digest"]);
}

TEST_CASE("train: a device that this build or this machine lacks is one line") {
  for (const auto kind : {Device::Kind::sim, Device::Kind::cuda}) {
    if (gpu::kind() == kind && gpu::count() > 0) continue;
    const std::string name(Device::name_of(kind));
    const test::Ended ended = test::run({LOCKSTEP_BIN_DIR "/train_mlp", "--device", name});
    CHECK(ended.code == 2);
    CHECK(ended.err.find("--device " + name) != std::string::npos);
    CHECK(std::ranges::count(ended.err, '\n') == 1);
  }
}
