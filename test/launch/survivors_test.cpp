// The launchers' book of a job that survives: events in, orders out.

#include "lockstep/launch/survivors.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <csignal>

#include "lockstep/core/error.h"

namespace lockstep::launch {

namespace {

using enum RankEvent::Kind;
using Orders = std::vector<std::string>;

/// "node 1: kill 3"; of lines the text.
Orders text_of(const std::vector<Order>& orders) {
  constexpr const char* words[] = {"", "publish", "start", "kill", "forget", "fail", "show"};
  Orders texts;
  for (const Order& order : orders) {
    const std::string line = order.line.substr(0, order.line.find('\n'));
    if (order.kind == Order::Kind::tell)
      texts.push_back(line);
    else if (order.kind == Order::Kind::publish)
      texts.push_back(fmt::format("node {}: {}", order.node, line));
    else
      texts.push_back(fmt::format("node {}: {} {}", order.node, words[static_cast<int>(order.kind)],
                                  order.rank));
  }
  return texts;
}

/// Others say so of a rank in a generation.
RankEvent hangs(int rank, int generation) {
  return dist::suspicion(generation, {{rank}, Fault::hangs});
}

const std::vector<std::string> places = {"10.0.0.1:4000", "10.0.0.2:4001", "10.0.0.3:4002"};

TEST_CASE("survivors: a suspicion counts once and only in its own generation") {
  Survivors survivors({0, 0, 0, 0});
  CHECK(survivors.take(hangs(2, 1)).empty());  // of a generation to come
  CHECK(text_of(survivors.take(hangs(2, 0))) == Orders{"node 0: kill 2"});
  CHECK(survivors.take(hangs(3, 0)).empty());
  CHECK(text_of(survivors.take({killed, 2, SIGKILL})) ==
        Orders{"node 0: 1 - 0@0 1@0 3@0", "rank 2 hangs and was killed by SIGKILL; 3 ranks go on",
               "node 0: forget 2"});
  CHECK(survivors.take(hangs(1, 0)).empty());
  CHECK(survivors.take(hangs(2, 1)).empty());  // it is lost
  CHECK(survivors.take(hangs(4, 1)).empty());  // there is none
  CHECK(text_of(survivors.take(hangs(1, 1))) == Orders{"node 0: kill 1"});
}

TEST_CASE("survivors: every node is told of each generation and where its first rank listens") {
  Survivors survivors({0, 1, 1, 2}, places);
  CHECK(survivors.generation().address == places[0]);
  CHECK(text_of(survivors.take({killed, 0, SIGSEGV})) ==
        Orders{"node 0: 1 10.0.0.2:4001 1@1 2@1 3@2", "node 1: 1 10.0.0.2:4001 1@1 2@1 3@2",
               "node 2: 1 10.0.0.2:4001 1@1 2@1 3@2", "rank 0 was killed by SIGSEGV; 3 ranks go on",
               "node 0: forget 0", "node 1: show 1"});
  CHECK(text_of(survivors.lose_node(1, "it is silent")) ==
        Orders{"node 0: 2 10.0.0.3:4002 3@2", "node 1: 2 10.0.0.3:4002 3@2",
               "node 2: 2 10.0.0.3:4002 3@2",
               "node 1 (ranks 1, 2) is lost: it is silent; 1 rank goes on", "node 2: show 3"});
  CHECK(survivors.lose_node(1, "it is silent").empty());
  CHECK(text_of(survivors.take({killed, 3, SIGKILL})) == Orders{"node 2: fail 3"});
}

TEST_CASE("survivors: a node is lost if ranks of others are left") {
  Survivors survivors({0, 1, 1, 2}, places);
  CHECK(survivors.others_than_node(0));
  (void)survivors.take({killed, 0, SIGKILL});
  (void)survivors.take({wanted, 0});  // rank 4 is on its way
  CHECK(survivors.others_than_node(1));
  (void)survivors.take({killed, 3, SIGKILL});
  CHECK_FALSE(survivors.others_than_node(1));
  (void)survivors.take({ready, 4});
  CHECK(survivors.others_than_node(1));
}

TEST_CASE("survivors: a rank is replaced where it was lost and joins when it is ready") {
  Survivors survivors({0, 1}, {places[0], places[1]}, 1);
  const Orders lost = text_of(survivors.take({killed, 1, SIGKILL}));
  CHECK(Orders(lost.begin() + 2, lost.end()) ==
        Orders{"rank 1 was killed by SIGKILL; 1 rank goes on", "node 1: start 2",
               "node 1: forget 1"});
  CHECK(text_of(survivors.take({ready, 2})).back() == "rank 2 joins; 2 ranks go on");
  CHECK(survivors.generation().members == std::vector{0, 2});
  CHECK(survivors.generation().nodes == std::vector{0, 1});
  CHECK(survivors.take({ready, 2}).empty());
  (void)survivors.take({joined, 2});
  // No other one is replaced; one that cannot be started is no loss.
  CHECK(text_of(survivors.take({killed, 2, SIGKILL})).back() == "node 1: forget 2");
  CHECK(text_of(survivors.take({wanted, 1})) == Orders{"node 1: start 3"});
  CHECK(survivors.take({not_started, 3}).empty());
  CHECK(text_of(survivors.take({killed, 0, SIGKILL})) == Orders{"node 0: fail 0"});
}

TEST_CASE("survivors: who comes when others have ended is killed and counts no more") {
  Survivors survivors({0, 0});
  (void)survivors.take({wanted, 0});
  (void)survivors.take({ready, 2});  // let in, but not in a world yet
  (void)survivors.take({wanted, 0});
  const Orders ended = text_of(survivors.take({ended_well, 0}));
  CHECK(Orders(ended.begin(), ended.begin() + 2) == Orders{"node 0: kill 2", "node 0: kill 3"});
  CHECK(survivors.generation().members == std::vector{1});
  CHECK(text_of(survivors.take({killed, 2, SIGKILL})) == Orders{"node 0: forget 2"});
  CHECK(survivors.take({wanted, 0}).empty());
  // The others have done their work, so it is no failure that this one has not.
  CHECK(text_of(survivors.take({killed, 1, SIGKILL}))[1] ==
        "rank 1 was killed by SIGKILL; the others have ended well");
}

TEST_CASE("survivors: no more ranks are started than the program can train on") {
  Survivors survivors({0, 0}, {}, 1);
  CHECK(survivors.take({limited, 0, 2}).empty());
  CHECK(text_of(survivors.take({wanted, 0})) ==
        Orders{"cannot add a rank: the job has 2, and its program trains on 2 at most"});
  CHECK(text_of(survivors.take({killed, 1, SIGKILL}))[2] == "node 0: start 2");  // in its place
  CHECK(survivors.take({wanted, 0}).size() == 1);
}

TEST_CASE("survivors: orders survive the way; anything else is refused") {
  const Order order = Order::parse(Order{Order::Kind::show, 2, 5, "x\n"}.text());
  CHECK(order.kind == Order::Kind::show);
  CHECK(order.node == 2);
  CHECK(order.rank == 5);
  CHECK(order.line == "x\n");
  for (const std::string& bad : {std::string(), std::string("x"), Order{.rank = -1}.text(),
                                 Order{static_cast<Order::Kind>(99), 0, 0, ""}.text()})
    CHECK_THROWS_AS((void)Order::parse(bad), CommError);
  Survivors survivors({0, 0});
  CHECK_THROWS_AS((void)survivors.take({killed, 2, SIGKILL}), CommError);
}

}  // namespace

}  // namespace lockstep::launch
