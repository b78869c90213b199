#pragma once
/// Launchers of several machines, with threads in their place.

#include <functional>
#include <thread>

#include "lockstep/launch/nodes.h"
#include "support/forked_ranks.h"

namespace lockstep::launch::testing {

using namespace dist;
using test::expect;

inline NodesOptions options_for(const std::string& address, int node, int count,
                                double timeout = 20) {
  return {.count = count, .node = node, .rendezvous = address, .timeout = Seconds(timeout)};
}

/// Runs body(node) in threads and returns what each threw ("" if nothing).
inline std::vector<std::string> run_nodes(int count, const std::function<void(int)>& body) {
  std::vector<std::string> errors(index(count));
  std::vector<std::jthread> threads;
  for (int n = 0; n < count; ++n)
    threads.emplace_back([&, n] {
      try {
        body(n);
      } catch (const std::exception& error) {
        errors[index(n)] = error.what();
      }
    });
  threads.clear();  // joins
  return errors;
}

/// Receives until this node has the job's result.
inline JobResult await_result(Nodes& nodes) {
  const Deadline deadline(Seconds(20));
  while (!nodes.result()) {
    expect(!deadline.passed(), "no result");
    std::vector<pollfd> sources;
    nodes.add_sources(sources);
    ::poll(sources.data(), sources.size(), 10);
    nodes.receive();
  }
  return *nodes.result();
}

}  // namespace lockstep::launch::testing
