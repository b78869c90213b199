// A rank leaves with code 0, at once or late: it is named first, however ranks lie on machines. So
// is one that leaves or hangs when no other one waits for it.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <memory>
#include <numeric>

#include "cli/nodes.h"
#include "faults/cell.h"
#include "support/free_address.h"

using namespace lockstep::test;

namespace {

/// What the launchers of a job say in which rank `victim` leaves, or has another fault. All say the
/// same.
std::string said_without(int victim, const std::vector<int>& layout, const std::string& moment,
                         const std::string& fault = "exit(0)", const std::string& timeout = "20") {
  const TemporaryFolder folder;
  const std::string address = free_address();
  const std::vector<std::string> program = {LOCKSTEP_BIN_DIR "/fault_victim",
                                            fault,
                                            moment,
                                            std::to_string(victim),
                                            "auto",
                                            timeout,
                                            folder.path().string()};
  std::vector<std::unique_ptr<Process>> nodes;
  const int count = static_cast<int>(layout.size());
  for (int n = 0; n < count; ++n)
    nodes.push_back(std::make_unique<Process>(node_command(
        layout[static_cast<std::size_t>(n)], count, n, address, program, {"--grace", "0.5"})));
  std::string said;
  for (auto& node : nodes) {
    const Ended ended = node->wait();
    CHECK(ended.code == 1);
    if (!said.empty()) CHECK(ended.err == said);
    said = ended.err;
  }
  return said;
}

}  // namespace

TEST_CASE("leavers: on machines of any layout, the rank that leaves is named first") {
  const std::vector<std::vector<int>> layouts = {{2, 2}, {1, 3}, {2, 1}, {1, 1, 1}};
  for (const std::vector<int>& layout : layouts) {
    const int size = std::accumulate(layout.begin(), layout.end(), 0);
    for (int victim = layout[0] == 2 ? 0 : 1; victim < size; ++victim)
      for (const char* moment : {"in the first collective", "before the first step"}) {
        if (victim % 2 == (moment[0] == 'i' ? 0 : 1)) continue;  // half of them
        const std::string said = said_without(victim, layout, moment);
        INFO(fmt::format("{}, rank {} leaves {}: {}", fmt::join(layout, " + "), victim, moment,
                         said));
        CHECK(said.starts_with(fmt::format("error: rank {} ", victim)));
        const bool by_name = contains(said, fmt::format("rank {} is gone", victim)) ||
                             contains(said, fmt::format("rank {} left", victim)) ||
                             contains(said, fmt::format("rank {} is missing", victim));
        CHECK((by_name || contains(said, "ended with exit code 0")));
      }
  }
}

TEST_CASE("leavers: who leaves between its last collective and the end of its World is named") {
  const std::vector<std::vector<int>> layouts = {{2, 1}, {1, 2}};
  for (const std::vector<int>& layout : layouts)
    for (const int victim : {0, 2}) {
      const std::string name = fmt::format("error: rank {} ", victim);
      CHECK(said_without(victim, layout, "after the model") ==
            name + "left with exit code 0 inside of a World that others have ended\n");
      const std::string with_model = said_without(victim, layout, "after the last collective");
      CHECK_MESSAGE(with_model.starts_with(name), with_model);
    }
}

TEST_CASE("leavers: who hangs between its last collective and the end of its World is ended") {
  const std::vector<std::vector<int>> layouts = {{3}, {2, 1}, {1, 2}};
  int turn = 0;
  for (const std::vector<int>& layout : layouts)
    for (const int victim : {0, 2}) {
      const char* const fault = turn++ % 3 == 1 ? "loop" : "SIGSTOP";
      const std::string said =
          said_without(victim, layout, "after the last collective", fault, "1");
      CHECK_MESSAGE(said.starts_with(fmt::format("error: rank {} hangs: [launch] ", victim)), said);
    }
}

TEST_CASE("leavers: who works on after the others' end is waited for") {
  for (const char* fault : {"sleep", "compute"}) {
    const TemporaryFolder folder;
    const Ended ended =
        run({LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "3", LOCKSTEP_BIN_DIR "/fault_victim", fault,
             "after the last collective", "1", "shm", "1", folder.path().string()});
    CHECK(ended.code == 0);
    CHECK(ended.err == "");
  }
}
