// The digits with every communicator: the same losses, identical replicas, and one digest for all
// that add up in tree order.

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/mpi/mpi.h"
#include "support/device.h"
#include "support/program.h"

using namespace lockstep;

namespace {

using Words = std::vector<std::string>;

/// The summary of a short training with two ranks; `before` comes before the program.
nlohmann::json train(Words before, const Words& options) {
  const auto file = std::filesystem::temp_directory_path() /
                    fmt::format("lockstep-communicators-{}.json", ::getpid());
  before.push_back(LOCKSTEP_BIN_DIR "/train_mlp");
  before.insert(before.end(), {"--data", LOCKSTEP_SOURCE_DIR "/samples/data/digits", "--layers",
                               "64,32,10", "--epochs", "2", "--json", file.string()});
  before.insert(before.end(), options.begin(), options.end());
  const test::Ended ended =
      test::run(before, {"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"});
  INFO(fmt::format("{}", ended.err));
  REQUIRE(ended.code == 0);
  const auto summary = nlohmann::json::parse(std::ifstream(file));
  std::filesystem::remove(file);
  CHECK(summary["replicas_identical"] == true);
  return summary;
}

double largest_difference(const nlohmann::json& a, const nlohmann::json& b) {
  REQUIRE(a["losses"].size() == b["losses"].size());
  double largest = 0;
  for (std::size_t i = 0; i < a["losses"].size(); ++i)
    largest =
        std::max(largest, std::abs(a["losses"][i].get<double>() - b["losses"][i].get<double>()));
  return largest;
}

}  // namespace

TEST_CASE("communicators: the digits over every transport and algorithm" *
          doctest::test_suite("slow")) {
  const Words three{"--ranks", "3", "--device", "cpu"};
  const auto with = [&](Words options) {
    options.insert(options.end(), three.begin(), three.end());
    return train({}, options);
  };
  const auto reference = with({"--transport", "shm", "--comm", "direct"});
  for (const std::string transport : {"shm", "tcp", "threads"})
    for (const std::string comm : {"auto", "direct", "one-shot", "halving", "ring"}) {
      CAPTURE(transport);
      CAPTURE(comm);
      const auto summary = with({"--transport", transport, "--comm", comm});
      CHECK(largest_difference(summary, reference) < 1e-5);
      // With three ranks over tcp, auto may take the ring.
      if (comm != "ring" && (comm != "auto" || transport != "tcp"))
        CHECK(summary["parameter_digest"] == reference["parameter_digest"]);
    }
}

TEST_CASE("communicators: the digits over MPI" * doctest::test_suite("slow")) {
  if (!dist::mpi_available() || test::run({"sh", "-c", "command -v mpirun"}).code != 0) {
    MESSAGE("skipped: this build has no MPI, or this machine no mpirun");
    return;
  }
  const auto reference = train({}, {"--ranks", "2", "--device", "cpu"});
  const auto mpi =
      train({"mpirun", "--oversubscribe", "-n", "2"}, {"--comm", "mpi", "--device", "cpu"});
  CHECK(mpi["transport"] == "mpi");
  CHECK(largest_difference(mpi, reference) < 1e-5);
}

TEST_CASE("communicators: the digits between GPUs") {
  if (test::on_cpu()) return;
  const std::string device(Device::name_of(test::test_device().kind));
  const auto with = [&](Words options) {
    options.insert(options.end(), {"--ranks", "2", "--device", device});
    return train({}, options);
  };
  const auto cpu = train({}, {"--ranks", "2", "--device", "cpu"});
  const auto direct = with({"--transport", "ipc"});
  CHECK(largest_difference(direct, cpu) < 1e-5);
  std::vector<Words> tree{{"--comm", "direct", "--transport", "ipc"}},
      others{{"--comm", "ring", "--transport", "ipc"}};
  if (gpu::count() > 1) {  // NCCL wants one for each rank
    tree.push_back({"--comm", "nccl-direct"});
    others.push_back({"--comm", "nccl"});
  }
  for (const Words& options : tree) {
    CAPTURE(options[1]);
    CHECK(with(options)["parameter_digest"] == direct["parameter_digest"]);
  }
  for (const Words& options : others) {
    CAPTURE(options[1]);
    CHECK(largest_difference(with(options), direct) < 1e-5);
  }
}
