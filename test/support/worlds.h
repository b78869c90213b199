#pragma once
/// Ranks on threads and in simulated worlds, and what their errors say. They run where they are
/// called: an error of a rank reaches the test.

#include <doctest/doctest.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/simulated/simulated_world.h"
#include "lockstep/dist/world/world.h"

namespace lockstep::test {

/// So many bytes, for DdpOptions.
constexpr double mebibytes(double bytes) { return bytes / (1 << 20); }

/// What() of an exception; empty for none.
inline std::string message_of(const std::exception_ptr& error) {
  if (!error) return "";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

using SimulatedRank = std::function<void(dist::HostCommunicator&)>;

/// Runs `program` on every rank of a simulated world, where time is virtual, and throws the error
/// of the first rank that has one.
inline void run_simulated(const dist::SimOptions& options, const SimulatedRank& program,
                          const dist::CommunicatorOptions& communicator_options = {}) {
  const dist::SimReport report =
      dist::simulate(options, [&](int, std::unique_ptr<dist::Transport> transport) {
        dist::HostCommunicator communicator(std::move(transport), communicator_options);
        program(communicator);
      });
  for (const std::exception_ptr& error : report.errors)
    if (error) std::rethrow_exception(error);
}

/// What each rank throws in a simulated world, with "direct". Empty for a rank that ends well.
inline std::vector<std::string> messages_simulated(const dist::SimOptions& options,
                                                   const SimulatedRank& program) {
  std::vector<std::string> messages(dist::index(options.size));
  const auto catching = [&](dist::HostCommunicator& communicator) {
    try {
      program(communicator);
    } catch (const Error& error) {
      messages[dist::index(communicator.rank())] = error.what();
    }
  };
  run_simulated(options, catching, {.algorithm = dist::Algorithm::two_shot});
  return messages;
}

/// The same on threads. A rank that has said what is wrong may end with another replica.
inline std::vector<std::string> messages_on_threads(int size,
                                                    const std::function<void(World&)>& program,
                                                    const JoinOptions& options = {}) {
  std::vector<std::string> messages(dist::index(size));
  const auto run_rank = [&](World& world) {
    try {
      program(world);
    } catch (const Error& error) {
      messages[dist::index(world.rank())] = error.what();
    }
  };
  try {
    run_threads(size, options, run_rank);
  } catch (const StateError&) {
    if (std::ranges::all_of(messages, &std::string::empty)) throw;
  }
  return messages;
}

/// Every rank's message contains all the texts.
inline void check_all_say(const std::vector<std::string>& messages,
                          const std::vector<std::string>& texts) {
  for (std::size_t rank = 0; rank < messages.size(); ++rank)
    for (const std::string& text : texts) {
      INFO("rank ", rank, " says: ", messages[rank]);
      INFO("and should say: ", text);
      CHECK(messages[rank].find(text) != std::string::npos);
    }
}

inline void check_all_well(const std::vector<std::string>& messages) {
  for (const std::string& message : messages) CHECK(message == "");
}

}  // namespace lockstep::test
