// How the launchers of several machines come together, with threads in their place; what follows
// when ranks have ended is in cli/nodes_test.cpp, with the real launchers.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <set>

#include "launch/nodes_support.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "support/strays.h"

namespace lockstep::launch {

using namespace dist;

namespace {

using test::contains;
using test::expect;

using namespace testing;

NodeCard card(int ranks, unsigned char nonce) {
  NodeCard result{.ranks = ranks, .host = "10.0.0.1", .rendezvous_port = 4000, .master_port = 5000};
  result.nonce.fill(std::byte{nonce});
  result.grace = std::chrono::seconds(nonce);
  return result;
}

std::string secret_file(const test::TemporaryFolder& folder, const std::string& name,
                        const std::string& content, mode_t mode = 0600) {
  const Descriptor file(::open((folder / name).c_str(), O_CREAT | O_WRONLY, 0600));
  check<Error>(::write(file.get(), content.data(), content.size()) == std::ssize(content) &&
                   ::fchmod(file.get(), mode) == 0,
               "cannot write {}", name);
  return folder / name;
}

TEST_CASE("nodes: a plan of uneven nodes") {
  const std::vector<NodeCard> cards{card(2, 1), card(1, 2), card(3, 3)};
  const Token secret = random_token();
  std::set<Token> tokens;
  std::set<std::string> names;
  int next = 0;
  for (int n = 0; n < 3; ++n) {
    const JobPlan plan = plan_job(cards, n, secret);
    CHECK(plan.node == n);
    CHECK(plan.nodes == 3);
    CHECK(plan.world == 6);
    CHECK(plan.first_rank == next);
    CHECK(plan.ranks == cards[index(n)].ranks);
    CHECK(plan.rendezvous == "10.0.0.1:4000");
    CHECK(plan.master_address == "10.0.0.1");
    CHECK(plan.master_port == 5000);
    CHECK(plan.grace == Seconds(3));
    CHECK(plan.node_of == std::vector{0, 0, 1, 2, 2, 2});
    CHECK_FALSE(plan.respawn);
    next += plan.ranks;
    tokens.insert(plan.token);
    names.insert(plan.name);
  }
  CHECK(tokens.size() == 1);
  CHECK(names.size() == 1);
  CHECK(names.begin()->size() == 16);

  // The token is another one with another secret, or when any node's nonce is another one.
  tokens.insert(plan_job(cards, 0, random_token()).token);
  for (std::size_t n = 0; n < 3; ++n) {
    std::vector<NodeCard> other = cards;
    other[n].nonce[31] ^= std::byte{1};
    tokens.insert(plan_job(other, 0, secret).token);
  }
  CHECK(tokens.size() == 5);

  CHECK(plan_job({card(max_ranks - 1, 1), card(1, 2)}, 1, secret).world == max_ranks);
  CHECK_THROWS_AS(plan_job({card(max_ranks, 1), card(1, 2)}, 1, secret), UsageError);
  CHECK_THROWS_AS(plan_job({card(1, 1), card(0, 2)}, 0, secret), UsageError);
}

TEST_CASE("nodes: in a job that survives any node can be where the ranks meet") {
  std::vector<NodeCard> cards{card(1, 1), card(1, 2), card(1, 3)};
  for (NodeCard& one : cards) one.respawn = 4;
  cards[1].host = "127.0.0.1", cards[1].rendezvous_port = 4001;  // so it has reached node 0
  cards[2].host = "10.0.0.3", cards[2].rendezvous_port = 4002;
  const JobPlan plan = plan_job(cards, 1, random_token());
  CHECK(plan.addresses ==
        std::vector<std::string>{"10.0.0.1:4000", "10.0.0.1:4001", "10.0.0.3:4002"});
  CHECK(plan.respawn == 4);
  cards[2].respawn = 3;
  CHECK_THROWS_WITH_AS(
      plan_job(cards, 1, random_token()),
      "[nodes] node 0 has --survive --respawn 4, node 2 has --survive --respawn 3: "
      "it must be the same on all",
      UsageError);
  cards[2].respawn.reset();
  CHECK_THROWS_WITH_AS(plan_job(cards, 1, random_token()), doctest::Contains("no --survive"),
                       UsageError);
}

TEST_CASE("nodes: cards and results survive the way, anything else is refused") {
  const NodeCard given = card(3, 9);
  CHECK(NodeCard::parse(given.text()) == given);
  NodeCard survives = given;
  survives.respawn = 0;
  CHECK(NodeCard::parse(survives.text()) == survives);
  for (const std::string& bad :
       {std::string(), std::string("x"), pack({"1"}), pack({"1", "short", "", "0", "0"}),
        pack({"-1", std::string(32, 'n'), "0", "", "", "0", "0"}),
        pack({"1x", std::string(32, 'n'), "0", "", "", "0", "0"})})
    CHECK_THROWS_AS(NodeCard::parse(bad), CommError);
}

TEST_CASE("nodes: interfaces, and which address a node is known by") {
  const std::vector<Interface> list{{"lo", "127.0.0.1"}, {"eth0", "10.0.0.5"}, {"eth0", "fd00::5"}};
  CHECK(interface_address("eth0", list) == "10.0.0.5");
  CHECK(interface_address("fd00::5", list) == "fd00::5");
  CHECK_THROWS_WITH_AS(
      interface_address("eth1", list),
      "[interface] 'eth1' is no interface of this machine; there are: lo 127.0.0.1, eth0 10.0.0.5, "
      "eth0 fd00::5",
      UsageError);
  CHECK(interface_address("127.0.0.1") == "127.0.0.1");  // of this machine

  for (const char* host : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) CHECK(is_loopback(host));
  for (const char* host : {"10.0.0.1", "128.0.0.1", "fd00::1", "node1", ""})
    CHECK_FALSE(is_loopback(host));

  CHECK(choose_host("", {"127.0.0.1", "127.0.0.1"}) == "127.0.0.1");  // one machine
  CHECK(choose_host("", {"127.0.0.1", "10.0.0.1", "10.0.0.2"}) == "10.0.0.1");
  CHECK(choose_host("lo", {"127.0.0.1"}) == "127.0.0.1");
  CHECK_THROWS_WITH_AS(choose_host("lo", {"127.0.0.1", "10.0.0.1"}),
                       doctest::Contains("--interface lo is 127.0.0.1 on node 0"), UsageError);
}

TEST_CASE("nodes: loopback addresses are refused where there are several machines") {
  const auto at = [](const char* host) { return Endpoint{.host = host}; };
  check_reachable({at("127.0.0.1"), at("127.0.1.1"), at("::1")}, 1);
  check_reachable({at("10.0.0.1"), at("10.0.0.1"), at("10.0.0.2")}, 2);
  const std::vector<Endpoint> mixed{at("10.0.0.1"), at("127.0.0.1"), at("10.0.0.2")};
  const char* what =
      "[interface] rank 1 would be reached at 127.0.0.1, a loopback address, but rank 0 at "
      "10.0.0.1 is on another machine";
  CHECK_THROWS_WITH_AS(check_reachable(mixed, 0), what, PeerError);
  CHECK_THROWS_WITH_AS(check_reachable(mixed, 2), what, PeerError);
  CHECK_THROWS_WITH_AS(check_reachable(mixed, 1), doctest::Contains("--interface"), CommError);
  CHECK_THROWS_WITH_AS(check_reachable(mixed, 1), doctest::Contains("lo 127.0.0.1"), CommError);
}

TEST_CASE("nodes: a reserved port is nobody else's, but a rank may listen at it") {
  const Descriptor reserved = reserve_port("127.0.0.1");
  const std::uint16_t port = local_port(reserved.get());
  const Endpoint where{{}, "127.0.0.1", port};
  for (int i = 0; i < 50; ++i) {
    const Descriptor other = listen_on({{}, "127.0.0.1", 0});
    CHECK(local_port(other.get()) != port);
  }
  const Descriptor listener = listen_on(where);
  CHECK(local_port(listener.get()) == port);
  std::string why;
  CHECK(static_cast<bool>(connect_to(where, Deadline(Seconds(1)), why)));
}

TEST_CASE("nodes: the meeting, with and without a secret, and the end of a good job") {
  const test::TemporaryFolder folder;
  const std::string secret = secret_file(folder, "secret", std::string(32, 's'));
  for (const int count : {2, 3}) {
    for (const std::string& file : {std::string(), secret}) {
      CAPTURE(count);
      const std::string address = test::free_address();
      std::vector<JobPlan> plans(index(count));
      const auto errors = run_nodes(count, [&](int node) {
        NodesOptions options = options_for(address, node, count);
        options.secret_file = file;
        Nodes nodes(options, node + 1);
        plans[index(node)] = nodes.plan();
        expect(!nodes.result() && !nodes.stopping(), "too early");
        nodes.report({});
        expect(await_result(nodes).cause == Cause::none, "not well");
      });
      for (const std::string& error : errors) CHECK(error == "");
      for (int n = 0; n < count; ++n) {
        const JobPlan& plan = plans[index(n)];
        CHECK(plan.world == count * (count + 1) / 2);
        CHECK(plan.first_rank == n * (n + 1) / 2);
        CHECK(plan.ranks == n + 1);
        CHECK(plan.token == plans[0].token);
        CHECK(plan.name == plans[0].name);
        CHECK(plan.rendezvous == plans[0].rendezvous);
        CHECK(plan.rendezvous.starts_with(test::own_host() + ":"));
      }
      CHECK(plans[0].token != Token{});
    }
  }
}

TEST_CASE("nodes: a node that never comes") {
  const std::string address = test::free_address();
  const auto errors = run_nodes(
      2, [&](int node) { Nodes nodes(options_for(address, node == 1 ? 2 : 0, 4, 0.4), 1); });
  for (const std::string& error : errors) {
    CHECK(contains(error, "after 0.4 s at " + address + " nodes 1, 3 are missing of a world of 4"));
  }
  const auto alone = run_nodes(1, [&](int) { Nodes nodes(options_for(address, 1, 2, 0.2), 1); });
  CHECK(contains(alone[0], "node 1 did not find node 0 at " + address + " within 0.2 s: Conn"));
}

TEST_CASE("nodes: strays at the launchers' port") {
  const test::TemporaryFolder folder;
  for (const std::string& file :
       {std::string(), secret_file(folder, "key", std::string(32, 's'))}) {
    const std::string address = test::free_address();
    std::atomic<bool> sent{false};
    std::vector<dist::Descriptor> open;
    std::jthread strays([&] {
      open = test::send_strays(address, Purpose::nodes, 0, Token{});
      sent = true;
    });
    const auto errors = run_nodes(2, [&](int node) {
      while (node == 1 && !sent) std::this_thread::yield();
      NodesOptions options = options_for(address, node, 2);
      options.secret_file = file;
      Nodes nodes(options, 1);
      nodes.report({});
      expect(await_result(nodes).cause == Cause::none, "not well");
    });
    for (const std::string& error : errors) CHECK(error == "");
  }
}

TEST_CASE("nodes: the same node twice, another number of nodes, too many ranks") {
  struct Case {
    int node, count, ranks;
    const char* message;
  };
  for (const Case& wrong : {Case{1, 3, 1, "node 1 has joined twice"},
                            Case{2, 4, 1, "node 2 expects a world of 4, node 0 one of 3"},
                            Case{2, 3, max_ranks, "ranks on node 2, 2 before it"}}) {
    CAPTURE(wrong.message);
    const std::string address = test::free_address();
    const auto errors = run_nodes(3, [&](int node) {
      if (node != 2) {
        Nodes nodes(options_for(address, node, 3), 1);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        Nodes nodes(options_for(address, wrong.node, wrong.count), wrong.ranks);
      }
    });
    for (const std::string& error : errors) CHECK(contains(error, wrong.message));
  }
}

TEST_CASE("nodes: another secret, none, and one that others can read") {
  const test::TemporaryFolder folder;
  const std::string address = test::free_address();
  const std::string right = secret_file(folder, "right", std::string(40, 'r'));
  const std::string wrong = secret_file(folder, "wrong", std::string(40, 'w'));
  const auto errors = run_nodes(4, [&](int n) {
    NodesOptions options = options_for(address, n == 0 ? 0 : 1, 2, n > 1 ? 0.3 : 20);
    options.secret_file = n < 2 ? right : n == 2 ? wrong : "";
    if (n == 1) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    Nodes nodes(options, 1);
  });
  CHECK(errors[0] == "");
  CHECK(errors[1] == "");
  for (const std::size_t n : {2, 3}) CHECK(contains(errors[n], "or another secret?"));

  const auto error_of = [&](const std::string& file) {
    NodesOptions options = options_for(address, 1, 2, 0.1);
    options.secret_file = file;
    return run_nodes(1, [&](int) { Nodes nodes(options, 1); })[0];
  };
  CHECK(contains(error_of(folder / "none"), "No such file"));
  CHECK(contains(error_of(secret_file(folder, "open", std::string(40, 'o'), 0640)), "mode 640"));
  CHECK(contains(error_of(secret_file(folder, "short", std::string(31, 's'))), "got 31"));
  CHECK(contains(error_of(secret_file(folder, "long", std::string(4097, 's'))), "more than 4096"));
}

TEST_CASE("nodes: strangers do not disturb") {
  const std::string address = test::free_address();
  std::atomic<bool> strangers_are_there{false};
  std::jthread strangers([&] {
    std::vector<Descriptor> sockets;
    std::string why;
    const Deadline deadline(Seconds(10));
    for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(500, '\xff'),
                                    std::string("Lock"), std::string()}) {
      Descriptor socket;
      while (!(socket = connect_to(Endpoint::parse(address), deadline, why)) &&
             !deadline.passed()) {
      }
      send_all(socket.get(), std::as_bytes(std::span(text)), deadline);
      sockets.push_back(std::move(socket));
    }
    strangers_are_there = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  const auto errors = run_nodes(2, [&](int node) {
    while (node == 1 && !strangers_are_there) std::this_thread::yield();
    Nodes nodes(options_for(address, node, 2), 1);
    nodes.report({});
    await_result(nodes);
  });
  for (const std::string& error : errors) CHECK(error == "");
}

TEST_CASE("nodes: the port is taken, and options that make no sense") {
  const Descriptor other = listen_on(Endpoint::parse("127.0.0.1:0"));
  const std::string taken = fmt::format("127.0.0.1:{}", local_port(other.get()));
  const auto error_of = [](const NodesOptions& options) {
    return run_nodes(1, [&](int) { Nodes nodes(options, 1); })[0];
  };
  const std::string in_use = error_of(options_for(taken, 0, 2));
  CHECK(contains(in_use, taken));
  CHECK(contains(in_use, "in use"));
  CHECK(contains(error_of(options_for("", 0, 2)), "--rendezvous"));
  CHECK(contains(error_of(options_for("unix:/tmp/x", 0, 2)), "HOST:PORT"));
  CHECK(contains(error_of(options_for("host", 0, 2)), "'host'"));
  CHECK(contains(error_of(options_for(taken, 2, 2)), "node 2 of 2"));
  CHECK(contains(error_of(options_for(taken, 1, 2, 0)), "timeout"));
  NodesOptions unknown = options_for(taken, 1, 2);
  unknown.interface = "no-such-interface0";
  CHECK(contains(error_of(unknown), "'no-such-interface0' is no interface of this machine"));
}

}  // namespace
}  // namespace lockstep::launch
