#pragma once
/// One job on several machines (nodes). The launchers of all nodes meet at node 0's before they
/// start any rank, and stay connected until the last rank has ended:
///
///   node 0's launcher                                every other node's
///     | <-- NodeCard {ranks, nonce} -------------------- |  (a rendezvous of launchers)
///     | --- all cards ---------------------------------> |  every launcher makes the same plan
///     :              the ranks meet and run              :
///     | <-- beat, each second: I run ------------------> |  and whether ranks have parted
///     | <-- stop: a rank has failed -------------------> |  node 0 passes it on
///     | <-- events, orders: of a job that survives ----> |  survivors.h
///     | <-- result of the node's ranks, once ended ----- |  with the replicas that they left
///     | --- the job's result --------------------------> |  all report it and exit with its code
///
/// A launcher that is silent for longer than the timeout is lost: it was stopped, or its machine is
/// gone. Time in which the waiting launcher itself did not run does not count. A job that survives
/// goes on without the ranks of a node that is lost, but not without node 0.
///
/// They prove to each other that they have the same secret file (dist/rendezvous/handshake.h). The
/// token of the ranks is made from that file and the nonces of all nodes: it never travels. Without
/// a secret file, any program on the network that knows the address can join: use it on a network
/// you trust.

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/dist/rendezvous/frames.h"
#include "lockstep/dist/rendezvous/running_time.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/job_result.h"
#include "lockstep/launch/survivors.h"

namespace lockstep::launch {

struct NodesOptions {
  int count = 1;
  int node = 0;               ///< this one
  std::string rendezvous{};   ///< HOST:PORT, where node 0's launcher listens
  std::string interface {};   ///< by name or address: where others reach the ranks of this node
  std::string secret_file{};  ///< the same on all nodes; empty: none
  dist::Seconds timeout{60};  ///< until all nodes have come, and for the silence of one
};

/// What a node tells all others.
struct NodeCard {
  int ranks = 1;
  dist::Token nonce{};
  std::chrono::milliseconds grace{2000};  ///< LaunchOptions::grace
  std::optional<int> respawn{};           ///< JobPlan::respawn
  // Where others reach this node, and a rank that listens here: rank 0, and in a job that survives
  // any that succeeds it. Else other nodes' cards do not say it.
  std::string host{};
  int rendezvous_port = 0;
  int master_port = 0;

  std::string text() const;
  static NodeCard parse(std::string_view text);  ///< throws CommError if it is none
  bool operator==(const NodeCard&) const = default;
};
/// The plan of node `node`, a pure function: with the same cards, by node, and the same secret, the
/// plans of all nodes fit together. Throws UsageError for more than max_ranks ranks, and for nodes
/// of which some survive and others do not.
JobPlan plan_job(const std::vector<NodeCard>& cards, int node, const dist::Token& secret);

/// The address at which `node` is known to the ranks: that of `interface`, if it is not empty, else
/// one of its connections with other nodes (`reached`, an address for each), if possible not a
/// loopback address. Throws UsageError for a loopback interface if some node is another
/// machine.
std::string choose_host(const std::string& interface, const std::vector<std::string>& reached,
                        int node = 0);

/// The connections of one node's launcher: none if this machine is the only one. Call it from one
/// thread.
class Nodes {
 public:
  /// Meets the launchers of the other nodes; blocks until all have come. Throws CommError after the
  /// timeout, with the nodes that did not come, and for nodes that do not fit together (the same
  /// node twice, another number of nodes); UsageError for options that make no sense.
  /// `grace`: how long the ranks of a node may take to end (LaunchOptions::grace). `respawn`: as
  /// JobPlan::respawn.
  Nodes(const NodesOptions& options, int ranks, dist::Seconds grace = dist::Seconds(2),
        std::optional<int> respawn = {});

  const JobPlan& plan() const { return plan_; }
  void add_sources(std::vector<pollfd>& sources) const;  ///< when one is readable, call receive()
  void receive();  ///< takes the messages that have come; does not block

  void stop();                                 ///< tells the others that a rank here has failed
  bool stopping() const { return stopping_; }  ///< some node called stop(), or is lost

  void send(const RankEvent& event);  ///< to node 0
  void send(const Order& order);      ///< to its node, if that is not lost
  /// What has come.
  std::vector<RankEvent> take_events() { return std::exchange(events_, {}); }
  std::vector<Order> take_orders() { return std::exchange(orders_, {}); }
  /// On node 0: asked once for a node that is lost, whether the job goes on without that node.
  void ask_before_losing(std::function<bool(int node, const std::string& how)> may_lose) {
    may_lose_ = std::move(may_lose);
  }
  /// Whether a rank of this node has ended its World, or itself, in peace: told with each beat.
  void set_parted(bool parted) { parted_ = parted; }
  /// Whether a rank of another node has done so, as far as this node was told. Nodes hear it from
  /// node 0.
  bool others_parted() const { return std::ranges::any_of(peers_, &Peer::parted); }
  /// A rank of that node is said to hang. If its launcher is silent as well, it is lost soon.
  void doubt(int node);

  void report(const JobResult& own);  ///< the ranks of this node have ended
  void leave(const JobResult& own);   ///< the launcher ends before the job does, with this result
  bool reported() const { return own_.has_value(); }
  /// The result of the job; nothing until all nodes have reported or are lost, or we leave().
  const std::optional<JobResult>& result() const { return result_; }

 private:
  static constexpr dist::Seconds beat_time{1}, longest_nap{2};  // a launcher wakes up each second
  // Ranks wait five seconds for a generation without one that hangs (world/survive.cpp).
  static constexpr dist::Seconds doubtful_silence{2.5};
  struct Peer {
    int node;
    std::string ranks;            // "ranks 2 to 3"
    dist::Connection connection;  // empty: lost
    dist::FrameReader reader{};
    std::optional<JobResult> result{};
    dist::RunningTime silence{longest_nap};
    bool doubted = false;
    bool parted = false;
  };

  NodeCard make_card(const NodesOptions& options, int ranks,
                     const std::vector<std::string>& reached, std::optional<int> respawn);
  void receive_from(Peer& peer);
  void handle(Peer& peer, const dist::Frame& frame);
  void lose(Peer& peer, std::string_view how);
  void listen_for_beats();
  void send_to_all(dist::FrameKind kind, const std::string& body = "");
  void send_result(int node, JobResult result);
  void conclude();

  dist::Seconds timeout_;
  bool parted_ = false;
  dist::Deadline next_beat_{beat_time};
  JobPlan plan_;
  std::vector<Peer> peers_;                         // node 0: all others; the others: node 0
  dist::Descriptor rendezvous_port_, master_port_;  // node 0 reserves them for its rank 0
  std::optional<JobResult> own_, result_;
  std::function<bool(int, const std::string&)> may_lose_;
  std::vector<RankEvent> events_;
  std::vector<Order> orders_;
  bool stopping_ = false;
  std::optional<dist::Deadline> patience_;  // for the other nodes' results, once all have to stop
};

}  // namespace lockstep::launch
