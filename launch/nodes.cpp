#include "lockstep/launch/nodes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/dist/rendezvous/rendezvous.h"

namespace lockstep::launch {

using dist::FrameKind;
using dist::index;
using dist::Seconds;
using dist::Token;

namespace {

/// For a small message to a launcher, which reads as soon as it can.
constexpr Seconds sending_time{5};
/// For the ranks of other nodes to end, once these nodes have been told to stop their ranks: beside
/// the grace period.
constexpr Seconds ending_time{8};

int number(std::string_view text) {
  const auto value = dist::parse_number<int>(text);
  check<CommError>(value && *value >= 0, "[nodes] '{}' is not a number", text);
  return *value;
}

/// Checks the options, too.
dist::RendezvousOptions meeting_of(const NodesOptions& options) {
  check<UsageError>(options.node >= 0 && options.node < options.count,
                    "[nodes] node {} of {}: nodes are numbered from 0", options.node,
                    options.count);
  check<UsageError>(!options.rendezvous.empty(),
                    "[nodes] where do {} nodes meet? (--rendezvous HOST:PORT, node 0's address)",
                    options.count);
  check<UsageError>(options.timeout > Seconds(0), "[nodes] the timeout must be positive, got {} s",
                    options.timeout.count());
  if (!options.interface.empty()) dist::interface_address(options.interface);  // throws early
  dist::RendezvousOptions meeting;
  meeting.address = dist::Endpoint::parse(options.rendezvous);
  check<UsageError>(!meeting.address.is_unix(), "[nodes] --rendezvous is HOST:PORT, got '{}'",
                    options.rendezvous);
  meeting.one_machine = dist::is_loopback(meeting.address.host);
  if (!options.secret_file.empty())
    meeting.credentials.token = dist::token_of_file(options.secret_file);
  meeting.credentials.rank = options.node;
  meeting.credentials.size = options.count;
  meeting.timeout = options.timeout;
  meeting.purpose = dist::Purpose::nodes;
  meeting.members = "node";
  meeting.of_job = false;  // a node is no rank: the message names it
  return meeting;
}

std::string text_of(const std::vector<int>& ranks) {
  return fmt::format("{}", fmt::join(ranks, " "));
}

std::vector<int> ranks_from(std::string_view text) {
  std::vector<int> ranks;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    ranks.push_back(number(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return ranks;
}

RankEvent read_event(std::string_view text) {
  const auto event = RankEvent::read(text);
  check<CommError>(event.has_value(), "[nodes] '{}' is no event", text);
  return *event;
}

std::pair<int, JobResult> result_from(std::string_view text) {
  const std::vector<std::string> parts = dist::unpack(text);
  check<CommError>(parts.size() >= 8, "[nodes] a result of {} parts", parts.size());
  const int cause = std::min(number(parts[2]), static_cast<int>(Cause::none));
  JobResult result{.exit_code = number(parts[1]),
                   .report = parts[3],
                   .cause = static_cast<Cause>(cause),
                   .missed = ranks_from(parts[4]),
                   .echoes = ranks_from(parts[5]),
                   .left = ranks_from(parts[6]),
                   .parted = !parts[7].empty()};
  for (std::size_t i = 8; i < parts.size(); ++i) {
    const RankEvent event = read_event(parts[i]);
    check<CommError>(event.kind == RankEvent::Kind::replica, "[nodes] '{}' is no replica",
                     parts[i]);
    result.replicas.push_back({event.rank, event.replica});
  }
  return {number(parts[0]), std::move(result)};
}

std::string text_of(int node, const JobResult& result) {
  std::vector<std::string> parts{std::to_string(node),
                                 std::to_string(result.exit_code),
                                 std::to_string(static_cast<int>(result.cause)),
                                 result.report,
                                 text_of(result.missed),
                                 text_of(result.echoes),
                                 text_of(result.left),
                                 result.parted ? "parted" : ""};
  for (const auto& [rank, record] : result.replicas)
    parts.push_back(
        RankEvent{.kind = RankEvent::Kind::replica, .rank = rank, .replica = record}.text());
  return dist::pack(parts);
}

/// By node: "rank 0", "ranks 1 to 3".
std::vector<std::string> ranks_of(const std::vector<NodeCard>& cards) {
  std::vector<std::string> names;
  int first = 0;
  for (const NodeCard& card : cards) {
    const int last = first + card.ranks - 1;
    names.push_back(card.ranks == 1 ? fmt::format("rank {}", first)
                                    : fmt::format("ranks {} to {}", first, last));
    first = last + 1;
  }
  return names;
}

// A node that is known by a loopback address has reached node 0 by it: it is on that machine.
dist::Endpoint address_of(const NodeCard& card, const NodeCard& node_0) {
  return {.host = dist::is_loopback(card.host) ? node_0.host : card.host,
          .port = static_cast<std::uint16_t>(card.rendezvous_port)};
}

std::string describe_survival(const NodeCard& card) {
  return card.respawn ? fmt::format("--survive --respawn {}", *card.respawn) : "no --survive";
}

}  // namespace

std::string NodeCard::text() const {
  return dist::pack({std::to_string(ranks),
                     std::string(reinterpret_cast<const char*>(nonce.data()), nonce.size()),
                     std::to_string(grace.count()), respawn ? std::to_string(*respawn) : "", host,
                     std::to_string(rendezvous_port), std::to_string(master_port)});
}

NodeCard NodeCard::parse(std::string_view text) {
  const std::vector<std::string> parts = dist::unpack(text);
  NodeCard card;
  check<CommError>(parts.size() == 7 && parts[1].size() == card.nonce.size(),
                   "[nodes] cannot read the {} bytes of a node", text.size());
  card.ranks = number(parts[0]);
  std::memcpy(card.nonce.data(), parts[1].data(), card.nonce.size());
  card.grace = std::chrono::milliseconds(number(parts[2]));
  if (!parts[3].empty()) card.respawn = number(parts[3]);
  card.host = parts[4];
  card.rendezvous_port = number(parts[5]);
  card.master_port = number(parts[6]);
  return card;
}

JobPlan plan_job(const std::vector<NodeCard>& cards, int node, const Token& secret) {
  JobPlan plan;
  plan.node = node;
  plan.nodes = static_cast<int>(cards.size());
  plan.world = 0;
  plan.grace = Seconds(0);
  Token nonces{};  // of all nodes: a chain, in which each link depends on those before
  for (int n = 0; n < plan.nodes; ++n) {
    const NodeCard& card = cards[index(n)];
    check<UsageError>(card.ranks >= 1 && card.ranks <= dist::max_ranks - plan.world,
                      "[nodes] {} ranks on node {}, {} before it: a world has at most {}",
                      card.ranks, n, plan.world, dist::max_ranks);
    check<UsageError>(card.respawn == cards[0].respawn,
                      "[nodes] node 0 has {}, node {} has {}: it must be the same on all",
                      describe_survival(cards[0]), n, describe_survival(card));
    if (n == node) plan.first_rank = plan.world;
    plan.node_of.insert(plan.node_of.end(), index(card.ranks), n);
    plan.addresses.push_back(address_of(card, cards[0]).text());
    plan.grace = std::max<Seconds>(plan.grace, card.grace);
    plan.world += card.ranks;
    nonces = dist::hmac(nonces, "nonce of a node", {card.nonce});
  }
  plan.ranks = cards[index(node)].ranks;
  plan.name = name_from(dist::hmac(secret, "name of a job", {nonces}));
  plan.token = dist::hmac(secret, "token of a job", {nonces});
  plan.respawn = cards[0].respawn;
  plan.rendezvous = plan.addresses.front();
  plan.master_address = cards[0].host;
  plan.master_port = cards[0].master_port;
  return plan;
}

std::string choose_host(const std::string& interface, const std::vector<std::string>& reached,
                        int node) {
  const auto far = std::ranges::find_if_not(reached, dist::is_loopback);
  if (interface.empty()) return far == reached.end() ? reached.front() : *far;
  const std::string host = dist::interface_address(interface);
  if (dist::is_loopback(host) && far != reached.end())
    fail<UsageError>(
        "[nodes] --interface {} is {} on node {}, which other machines cannot reach; they came to "
        "{}. There are: {}",
        interface, host, node, *far, dist::describe(dist::interfaces()));
  return host;
}

Nodes::Nodes(const NodesOptions& options, int ranks, Seconds grace, std::optional<int> respawn)
    : timeout_(options.timeout) {
  if (options.count <= 1) {  // what is not needed must be right all the same
    if (!options.secret_file.empty()) (void)dist::token_of_file(options.secret_file);
    if (!options.interface.empty()) (void)dist::interface_address(options.interface);
    if (!options.rendezvous.empty()) (void)dist::Endpoint::parse(options.rendezvous);
    plan_ = local_job(ranks);
    plan_.respawn = respawn;
    return;
  }
  const dist::RendezvousOptions meeting = meeting_of(options);
  const auto rendezvous = dist::join_rendezvous(meeting);
  NodeCard own;
  try {
    own = make_card(options, ranks, rendezvous->local_addresses(), respawn);
    own.grace = std::chrono::duration_cast<std::chrono::milliseconds>(grace);
  } catch (const Error& error) {
    rendezvous->abort(fmt::format("[nodes] node {} gave up: {}", options.node, error.what()));
    throw;
  }
  std::vector<NodeCard> cards;
  for (const std::string& text : rendezvous->all_gather("nodes", own.text()))
    cards.push_back(NodeCard::parse(text));
  plan_ = plan_job(cards, options.node, meeting.credentials.token);
  plan_.interface = options.interface;

  std::vector<dist::Connection> connections = std::move(*rendezvous).take_connections();
  const std::vector<std::string> names = ranks_of(cards);
  for (int node = 0; node < options.count; ++node) {
    if (!connections[index(node)]) continue;
    dist::notice_silence(connections[index(node)].get());
    peers_.push_back({.node = node,
                      .ranks = names[index(node)],
                      .connection = std::move(connections[index(node)])});
  }
}

NodeCard Nodes::make_card(const NodesOptions& options, int ranks,
                          const std::vector<std::string>& reached, std::optional<int> respawn) {
  NodeCard card{.ranks = ranks, .nonce = dist::random_token(), .respawn = respawn};
  if (options.node != 0 && !respawn) return card;
  card.host = choose_host(options.interface, reached, options.node);
  rendezvous_port_ = dist::reserve_port(card.host);
  card.rendezvous_port = dist::local_port(rendezvous_port_.get());
  if (options.node != 0) return card;
  master_port_ = dist::reserve_port(card.host);
  card.master_port = dist::local_port(master_port_.get());
  return card;
}

void Nodes::add_sources(std::vector<pollfd>& sources) const {
  for (const Peer& peer : peers_)
    if (peer.connection) sources.push_back({peer.connection.get(), POLLIN, 0});
}

void Nodes::receive() {
  for (Peer& peer : peers_)
    if (peer.connection) receive_from(peer);
  listen_for_beats();
  if (stopping_ && own_ && !patience_) patience_ = dist::Deadline(ending_time + plan_.grace);
  if (patience_ && patience_->passed())
    for (Peer& peer : peers_)
      if (peer.connection && !peer.result) lose(peer, "its launcher was told to stop, but has not");
  if (!result_) conclude();
}

void Nodes::listen_for_beats() {
  const Seconds now = std::chrono::steady_clock::now().time_since_epoch();
  for (Peer& peer : peers_) {
    if (!peer.connection) continue;
    const Seconds limit = peer.doubted ? std::min(doubtful_silence, timeout_) : timeout_;
    if (peer.silence.look(now) > limit)
      lose(peer, fmt::format("its launcher has told nothing for {:g} s", limit.count()));
  }
  if (!next_beat_.passed()) return;
  next_beat_ = dist::Deadline(beat_time);
  const bool any = parted_ || (plan_.node == 0 && others_parted());
  send_to_all(FrameKind::beat, any ? "parted" : "");
}

void Nodes::receive_from(Peer& peer) {
  try {
    using enum dist::FrameReader::State;
    while (peer.connection && peer.reader.read(peer.connection) == complete) {
      peer.silence.restart();
      peer.doubted = false;
      handle(peer, peer.reader.take());
    }
    if (peer.reader.ended()) lose(peer, "the connection with its launcher has ended");
  } catch (const CommError& error) {
    lose(peer, error.what());
  }
}

void Nodes::handle(Peer& peer, const dist::Frame& frame) {
  if (frame.kind == FrameKind::beat) {
    peer.parted = !frame.body.empty();
    return;
  }
  if (frame.kind == FrameKind::stop) return stop();
  if (frame.kind == FrameKind::event && plan_.node == 0)
    return events_.push_back(read_event(frame.body));
  if (frame.kind == FrameKind::order && peer.node == 0)
    return orders_.push_back(Order::parse(frame.body));
  check<CommError>(frame.kind == FrameKind::result, "its launcher sent a frame of kind '{}'",
                   static_cast<char>(frame.kind));
  const auto [node, result] = result_from(frame.body);
  if (peer.node != 0) {
    // A node without ranks that leaves a job that survives takes nothing from it.
    const bool had_ended = peer.result && peer.result->cause == Cause::none;
    if (!may_lose_ || !had_ended) peer.result = result;
    return;
  }
  result_ = node == plan_.node && own_ ? *own_ : result;
  stopping_ |= result.cause != Cause::none;  // node 0 may leave early
}

/// A launcher that leaves before it has the job's result is lost.
void Nodes::lose(Peer& peer, std::string_view how) {
  peer.connection.socket.close();
  if (result_) return;
  if (may_lose_ && !stopping_ && may_lose_(peer.node, std::string(how))) {
    if (!peer.result) peer.result = JobResult{};
    return;
  }
  const JobResult lost{
      1, fmt::format("error: node {} ({}) is lost: {}\n", peer.node, peer.ranks, how), Cause::lost};
  if (!peer.result || lost.cause < peer.result->cause) peer.result = lost;
  stop();
}

void Nodes::stop() {
  if (!std::exchange(stopping_, true)) send_to_all(FrameKind::stop);
}

/// A launcher that cannot be reached is found to be lost when it is read from.
void Nodes::send_to_all(FrameKind kind, const std::string& body) {
  for (Peer& peer : peers_)
    if (peer.connection)
      dist::send_frame(peer.connection, kind, body, dist::Deadline(sending_time));
}

void Nodes::send(const RankEvent& event) { send_to_all(FrameKind::event, event.text()); }

void Nodes::send(const Order& order) {
  for (Peer& peer : peers_)
    if (peer.node == order.node && peer.connection)
      dist::send_frame(peer.connection, FrameKind::order, order.text(),
                       dist::Deadline(sending_time));
}

void Nodes::doubt(int node) {
  for (Peer& peer : peers_) peer.doubted |= peer.node == node;
}

void Nodes::send_result(int node, JobResult result) {
  // What a rank has reported itself was not seen on the other nodes.
  if (result.report.empty() && result.exit_code != 0)
    result.report = fmt::format("error: a rank on node {} failed with exit code {} and said why\n",
                                node, result.exit_code);
  send_to_all(FrameKind::result, text_of(node, result));
}

void Nodes::report(const JobResult& own) {
  own_ = own;
  if (own.cause != Cause::none) stop();
  if (plan_.node != 0) send_result(plan_.node, own);
  receive();
}

void Nodes::leave(const JobResult& own) {
  result_ = own;
  send_result(plan_.node, own);
}

/// Once all nodes have reported or are lost: node 0 tells the others. They conclude themselves if
/// node 0 is lost. The most likely first cause counts, because the clocks of two machines cannot
/// tell which of two failures came first.
void Nodes::conclude() {
  const auto known = [](const Peer& peer) { return peer.result.has_value(); };
  if (!own_ || !std::ranges::all_of(peers_, known)) return;
  std::vector<JobResult> results{*own_};
  for (const Peer& peer : peers_) results.push_back(*peer.result);
  results.push_back(compare_ends(results));
  const std::size_t first = first_of(results);
  result_ = results[first];
  if (plan_.node == 0) send_result(static_cast<int>(first), results[first]);
}

}  // namespace lockstep::launch
