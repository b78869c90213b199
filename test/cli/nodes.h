#pragma once
/// Launchers of several nodes, and what they train: for the tests of nodes.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "support/program.h"
#include "support/temporary_folder.h"

namespace lockstep::test {

/// `lockstep-run` on node `node` of `nodes`.
inline std::vector<std::string> node_command(int ranks, int nodes, int node,
                                             const std::string& rendezvous,
                                             const std::vector<std::string>& program,
                                             const std::vector<std::string>& options = {}) {
  std::vector<std::string> command{LOCKSTEP_BIN_DIR "/lockstep-run"};
  for (const std::string& option :
       {std::string("-n"), std::to_string(ranks), std::string("--nnodes"), std::to_string(nodes),
        std::string("--node-rank"), std::to_string(node), std::string("--rendezvous"), rendezvous})
    command.push_back(option);
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

/// Training the digits, which writes `summary`.
inline std::vector<std::string> training(const std::string& summary,
                                         const std::vector<std::string>& options,
                                         const char* epochs = "2") {
  std::vector<std::string> command{LOCKSTEP_BIN_DIR "/train_mlp",
                                   "--data",
                                   LOCKSTEP_SOURCE_DIR "/samples/data/digits",
                                   "--epochs",
                                   epochs,
                                   "--json",
                                   summary};
  command.insert(command.end(), options.begin(), options.end());
  return command;
}

inline std::vector<std::string> endless_training() {
  return {LOCKSTEP_BIN_DIR "/train_mlp", "--data", LOCKSTEP_SOURCE_DIR "/samples/data/digits",
          "--epochs", "1000000"};
}

/// Rank 0's heading says that all are there.
inline void wait_for_training(const Process& node_0) {
  for (int k = 0; k < 3000 && !contains(node_0.err(), "samples/s"); ++k) usleep(10000);
  REQUIRE(contains(node_0.err(), "samples/s"));
}

/// Compares what was trained on several nodes with the same number of ranks on one.
inline void check_same_training(const std::string& summary, int ranks,
                                const std::vector<std::string>& options) {
  const TemporaryFolder folder;
  std::vector<std::string> command = training(folder / "one", options);
  command.insert(command.begin(), {LOCKSTEP_BIN_DIR "/lockstep-run", "-n", std::to_string(ranks)});
  const Ended ended = run(command);
  CAPTURE(ended.err);
  REQUIRE(ended.code == 0);
  std::ifstream one_file(folder / "one"), file(summary);
  const auto one = nlohmann::json::parse(one_file), several = nlohmann::json::parse(file);
  CHECK(several["replicas_identical"] == true);
  CHECK(several["ranks"] == ranks);
  REQUIRE(several["losses"].size() == one["losses"].size());
  REQUIRE(one["losses"].size() > 10);
  for (std::size_t i = 0; i < one["losses"].size(); ++i)
    CHECK(std::abs(several["losses"][i].get<double>() - one["losses"][i].get<double>()) <= 1e-5);
  CHECK(several["test_accuracy"] == one["test_accuracy"]);
  // `direct` promises the same bits on any transport.
  if (std::ranges::count(options, "direct") > 0)
    CHECK(several["parameter_digest"] == one["parameter_digest"]);
}

}  // namespace lockstep::test
