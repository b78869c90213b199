// How a job on several nodes ends, with threads in the place of the launchers.

#include <doctest/doctest.h>

#include <atomic>

#include "launch/nodes_support.h"

namespace lockstep::launch {

using namespace dist;

namespace {

using namespace testing;

TEST_CASE("nodes: the failure nearest to the cause is everybody's") {
  const std::string address = test::free_address();
  const JobResult consequence{1, "error: rank 0 lost its peer\n", Cause::consequence};
  const JobResult killed{1, "error: rank 2 was killed\n", Cause::killed};
  const JobResult quiet{3, "", Cause::failed};  // has said why itself
  for (const int culprit : {0, 1, 2}) {
    for (const JobResult& cause : {killed, quiet}) {
      CAPTURE(culprit);
      std::vector<JobResult> seen(3);
      const auto errors = run_nodes(3, [&](int node) {
        Nodes nodes(options_for(address, node, 3), 1);
        nodes.report(node == culprit ? cause : consequence);
        seen[index(node)] = await_result(nodes);
        expect(nodes.stopping(), "node {} would not stop its ranks", node);
      });
      for (const std::string& error : errors) CHECK(error == "");
      for (int n = 0; n < 3; ++n) {
        CHECK(seen[index(n)].exit_code == cause.exit_code);
        if (n == culprit || !cause.report.empty())
          CHECK(seen[index(n)].report == cause.report);
        else
          CHECK(seen[index(n)].report ==
                fmt::format("error: a rank on node {} failed with exit code 3 and said why\n",
                            culprit));
      }
    }
  }
}

TEST_CASE("nodes: a launcher that is gone") {
  for (const int victim : {0, 1, 2}) {
    CAPTURE(victim);
    const std::string address = test::free_address();
    std::vector<JobResult> seen(3);
    const auto errors = run_nodes(3, [&](int node) {
      Nodes nodes(options_for(address, node, 3), 1);
      if (node == victim) return;
      const Deadline deadline(Seconds(10));
      while (!nodes.stopping()) {
        expect(!deadline.passed(), "node {} does not notice", node);
        nodes.receive();
      }
      nodes.report({1, "error: a consequence\n", Cause::consequence});
      seen[index(node)] = await_result(nodes);
    });
    for (const std::string& error : errors) CHECK(error == "");
    for (int n = 0; n < 3; ++n)
      if (n != victim)
        CHECK(
            seen[index(n)].report ==
            fmt::format("error: node {0} (rank {0}) is lost: the connection with its launcher has "
                        "ended\n",
                        victim));
  }
}

TEST_CASE("nodes: a launcher that is silent, and its ranks") {
  for (const int victim : {0, 1, 2}) {
    CAPTURE(victim);
    const std::string address = test::free_address();
    std::vector<JobResult> seen(3);
    std::atomic<int> over{0};
    const auto errors = run_nodes(3, [&](int node) {
      const std::shared_ptr<void> at_end(nullptr, [&](void*) { ++over; });
      Nodes nodes(options_for(address, node, 3, node == victim ? 20 : 2.5), node + 1);
      while (node == victim && over < 2) std::this_thread::yield();
      if (node == victim) return;
      const Deadline deadline(Seconds(20));
      while (!nodes.stopping()) {
        expect(!deadline.passed(), "node {} does not notice", node);
        nodes.receive();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      nodes.report({1, "error: a consequence\n", Cause::consequence});
      seen[index(node)] = await_result(nodes);
    });
    for (const std::string& error : errors) CHECK(error == "");
    const std::vector<std::string> ranks{"rank 0", "ranks 1 to 2", "ranks 3 to 5"};
    for (int n = 0; n < 3; ++n)
      if (n != victim)
        CHECK(seen[index(n)].report ==
              fmt::format("error: node {} ({}) is lost: its launcher has told nothing for 2.5 s\n",
                          victim, ranks[index(victim)]));
  }
}

TEST_CASE("nodes: replicas that differ between nodes alone") {
  for (const int odd : {0, 1, 2, 3}) {  // 3: none
    CAPTURE(odd);
    const std::string address = test::free_address();
    std::vector<JobResult> seen(3);
    const auto errors = run_nodes(3, [&](int node) {
      Nodes nodes(options_for(address, node, 3), 2);
      const std::uint64_t fingerprint = node == odd ? 8 : 7;
      JobResult own;
      for (const int place : {0, 1})
        own.replicas.push_back({nodes.plan().first_rank + place, {5, fingerprint}});
      own.replicas.push_back({2 * node, {100 + static_cast<std::uint64_t>(node), fingerprint}});
      nodes.report(own);
      seen[index(node)] = await_result(nodes);
    });
    for (const std::string& error : errors) CHECK(error == "");
    for (const JobResult& result : seen) {
      CHECK(result.exit_code == (odd == 3 ? 0 : 1));
      if (odd < 3)
        CHECK(result.report.starts_with(fmt::format(
            "error: ranks {}, {} ended with another replica than ranks ", 2 * odd, 2 * odd + 1)));
      else
        CHECK(result.report.empty());
    }
  }
}

TEST_CASE("nodes: a launcher that leaves early says why") {
  for (const int leaver : {0, 1}) {
    CAPTURE(leaver);
    const std::string address = test::free_address();
    const JobResult reason{1, "error: no such program\n", Cause::failed};
    JobResult seen;
    const auto errors = run_nodes(2, [&](int node) {
      Nodes nodes(options_for(address, node, 2), 1);
      if (node == leaver) return nodes.leave(reason);
      const Deadline deadline(Seconds(10));
      while (!nodes.stopping()) {
        expect(!deadline.passed(), "node {} does not stop its ranks", node);
        nodes.receive();
      }
      nodes.report({1, "error: told to stop\n", Cause::stopped});
      seen = await_result(nodes);
    });
    for (const std::string& error : errors) CHECK(error == "");
    CHECK(seen.report == reason.report);
  }
}

}  // namespace
}  // namespace lockstep::launch
