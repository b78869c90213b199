#include "lockstep/launch/nodes.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/rendezvous/interfaces.h"
#include "lockstep/dist/rendezvous/join.h"

namespace lockstep::dist {

namespace {

/// For a small message to a launcher, which reads as soon as it can.
constexpr Seconds sending_time{5};
/// For the ranks of other nodes to end, once these have been told to stop their ranks.
constexpr Seconds ending_time{10};

int number(std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check<CommError>(error == std::errc{} && stop == text.data() + text.size() && value >= 0,
                   "[nodes] '{}' is not a number", text);
  return value;
}

void check_options(const NodesOptions& options) {
  check<UsageError>(options.node >= 0 && options.node < options.count,
                    "[nodes] node {} of {}: nodes are numbered from 0", options.node,
                    options.count);
  check<UsageError>(!options.rendezvous.empty(),
                    "[nodes] where do {} nodes meet? (--rendezvous HOST:PORT, node 0's address)",
                    options.count);
  check<UsageError>(options.timeout > Seconds(0), "[nodes] the timeout must be positive, got {} s",
                    options.timeout.count());
}

std::string as_text(int node, const JobResult& result) {
  return pack({std::to_string(node), std::to_string(result.exit_code),
               std::to_string(static_cast<int>(result.cause)), result.report});
}

/// A rank that has said itself why it failed was not heard on the other nodes.
JobResult for_others(int node, JobResult result) {
  if (result.report.empty() && result.exit_code != 0)
    result.report = fmt::format("error: a rank on node {} failed with exit code {} and said why\n",
                                node, result.exit_code);
  return result;
}

std::pair<int, JobResult> result_from(std::string_view text) {
  const std::vector<std::string> parts = unpack(text);
  check<CommError>(parts.size() == 4, "[nodes] a result of {} parts", parts.size());
  const int cause = std::min(number(parts[2]), static_cast<int>(Cause::none));
  return {number(parts[0]), {number(parts[1]), parts[3], static_cast<Cause>(cause)}};
}

}  // namespace

std::string NodeCard::text() const {
  return pack({std::to_string(ranks),
               std::string(reinterpret_cast<const char*>(nonce.data()), nonce.size()), host,
               std::to_string(rendezvous_port), std::to_string(master_port)});
}

NodeCard NodeCard::parse(std::string_view text) {
  const std::vector<std::string> parts = unpack(text);
  NodeCard card;
  check<CommError>(parts.size() == 5 && parts[1].size() == card.nonce.size(),
                   "[nodes] {} bytes of a node are not understood", text.size());
  card.ranks = number(parts[0]);
  std::memcpy(card.nonce.data(), parts[1].data(), card.nonce.size());
  card.host = parts[2];
  card.rendezvous_port = number(parts[3]);
  card.master_port = number(parts[4]);
  return card;
}

JobPlan plan_job(const std::vector<NodeCard>& cards, int node, const Token& secret) {
  JobPlan plan;
  plan.node = node;
  plan.nodes = static_cast<int>(cards.size());
  plan.world = 0;
  Token nonces{};  // of all nodes: a chain, in which each link depends on those before
  for (int n = 0; n < plan.nodes; ++n) {
    const NodeCard& card = cards[index(n)];
    check<UsageError>(card.ranks >= 1 && card.ranks <= max_ranks - plan.world,
                      "[nodes] {} ranks on node {}, {} before it: a world has at most {}",
                      card.ranks, n, plan.world, max_ranks);
    if (n == node) plan.first_rank = plan.world;
    plan.world += card.ranks;
    nonces = hmac(nonces, "nonce of a node", {card.nonce});
  }
  plan.ranks = cards[index(node)].ranks;
  plan.name = name_from(hmac(secret, "name of a job", {nonces}));
  plan.token = hmac(secret, "token of a job", {nonces});
  const NodeCard& first = cards[0];
  const Endpoint rendezvous{{}, first.host, static_cast<std::uint16_t>(first.rendezvous_port)};
  plan.rendezvous = rendezvous.text();
  plan.master_address = first.host;
  plan.master_port = first.master_port;
  return plan;
}

std::string choose_host(const std::string& interface, const std::vector<std::string>& reached) {
  const auto far = std::ranges::find_if_not(reached, is_loopback);
  if (interface.empty()) return far == reached.end() ? reached.front() : *far;
  const std::string host = interface_address(interface);
  check<UsageError>(!is_loopback(host) || far == reached.end(),
                    "[nodes] --interface {} is {} on node 0, which other machines cannot reach; "
                    "they came to {}. There are: {}",
                    interface, host, *far, describe(interfaces()));
  return host;
}

Nodes::Nodes(const NodesOptions& options, int ranks) {
  check_options(options);
  // Found out before the others are kept waiting.
  if (!options.interface.empty()) interface_address(options.interface);
  const bool authenticated = !options.secret_file.empty();
  RendezvousOptions meeting;
  meeting.address = Endpoint::parse(options.rendezvous);
  check<UsageError>(!meeting.address.is_unix(), "[nodes] --rendezvous is HOST:PORT, got '{}'",
                    options.rendezvous);
  meeting.one_machine = is_loopback(meeting.address.host);  // the literal word, not what it means
  meeting.credentials.token = authenticated ? token_of_file(options.secret_file) : Token{};
  meeting.credentials.rank = options.node;
  meeting.credentials.size = options.count;
  meeting.timeout = options.timeout;
  meeting.purpose = Purpose::nodes;
  meeting.members = "node";
  if (options.node == 0) {
    std::vector<Descriptor> sockets = gather_ranks(meeting);
    for (int node = 1; node < options.count; ++node)
      peers_.push_back({.node = node, .socket = std::move(sockets[index(node)])});
  } else {
    peers_.push_back({.node = 0, .socket = join_rank_0(meeting)});
  }
  for (const Peer& peer : peers_) notice_silence(peer.socket.get());
  const NodeCard own{.ranks = ranks, .nonce = random_token()};
  plan_ = plan_job(exchange(own, options), options.node, meeting.credentials.token);
  plan_.interface = options.interface;
}

/// Everybody's cards, by node.
std::vector<NodeCard> Nodes::exchange(NodeCard own, const NodesOptions& options) {
  const Deadline deadline(options.timeout);
  std::vector<NodeCard> cards;
  if (options.node != 0) {
    tell_all(FrameKind::gather, own.text());
    const Frame frame = await(peers_[0], FrameKind::everything, deadline);
    for (const std::string& text : unpack(frame.body)) cards.push_back(NodeCard::parse(text));
    check<CommError>(std::ssize(cards) == options.count, "[nodes] {} cards of {} nodes",
                     cards.size(), options.count);
    return cards;
  }
  try {
    std::vector<std::string> reached;
    for (const Peer& peer : peers_) reached.push_back(local_address(peer.socket.get()));
    own.host = choose_host(options.interface, reached);
    rendezvous_port_ = reserve_port(own.host);
    master_port_ = reserve_port(own.host);
    own.rendezvous_port = local_port(rendezvous_port_.get());
    own.master_port = local_port(master_port_.get());
    cards.push_back(own);
    for (Peer& peer : peers_)
      cards.push_back(NodeCard::parse(await(peer, FrameKind::gather, deadline).body));
    plan_job(cards, 0, {});  // throws if they cannot be
  } catch (const Error& error) {
    tell_all(FrameKind::abort, error.what());
    throw;
  }
  std::vector<std::string> texts;
  for (const NodeCard& card : cards) texts.push_back(card.text());
  tell_all(FrameKind::everything, pack(texts));
  return cards;
}

Frame Nodes::await(Peer& peer, FrameKind kind, const Deadline& deadline) {
  FrameReader::State state;
  while ((state = peer.reader.read(peer.socket.get())) == FrameReader::State::incomplete)
    check<CommError>(wait_for(peer.socket.get(), POLLIN, deadline),
                     "[nodes] node {} has come, but says nothing", peer.node);
  check<PeerError>(state == FrameReader::State::complete, "[nodes] node {} has left", peer.node);
  Frame frame = peer.reader.take();
  check<PeerError>(frame.kind != FrameKind::abort, "[nodes] node {} gave up: {}", peer.node,
                   frame.body);
  check<CommError>(frame.kind == kind, "[nodes] node {} sent a frame of kind '{}', not '{}'",
                   peer.node, static_cast<char>(frame.kind), static_cast<char>(kind));
  return frame;
}

void Nodes::add_sources(std::vector<pollfd>& sources) const {
  for (const Peer& peer : peers_)
    if (peer.socket) sources.push_back({peer.socket.get(), POLLIN, 0});
}

void Nodes::look() {
  for (Peer& peer : peers_)
    if (peer.socket) look_at(peer);
  if (stopping_ && own_ && !patience_) patience_ = Deadline(ending_time);
  if (patience_ && patience_->passed())
    for (Peer& peer : peers_)
      if (peer.socket && !peer.result) lose(peer, "its launcher was told to stop, but has not");
  if (!result_) conclude();
}

void Nodes::look_at(Peer& peer) {
  try {
    while (peer.socket) {
      const FrameReader::State state = peer.reader.read(peer.socket.get());
      if (state == FrameReader::State::incomplete) return;
      if (state == FrameReader::State::ended)
        return lose(peer, "the connection with its launcher has ended");
      take(peer, peer.reader.take());
    }
  } catch (const CommError& error) {
    lose(peer, error.what());
  }
}

void Nodes::take(Peer& peer, const Frame& frame) {
  if (frame.kind == FrameKind::stop) {
    stop();
  } else if (frame.kind == FrameKind::result && peer.node != 0) {
    peer.result = result_from(frame.body).second;
  } else if (frame.kind == FrameKind::result) {
    const auto [node, result] = result_from(frame.body);
    result_ = node == plan_.node && own_ ? *own_ : result;
    stopping_ |= result.cause != Cause::none;  // node 0 may leave early
  } else {
    fail<CommError>("its launcher sent a frame of kind '{}'", static_cast<char>(frame.kind));
  }
}

/// A launcher leaves when it has the job's result, not before.
void Nodes::lose(Peer& peer, std::string_view how) {
  peer.socket.close();
  if (result_) return;
  const JobResult lost = lost_node(peer.node, how);
  if (!peer.result || lost.cause < peer.result->cause) peer.result = lost;
  stop();
}

void Nodes::stop() {
  if (std::exchange(stopping_, true)) return;
  tell_all(FrameKind::stop, "");
}

void Nodes::tell_all(FrameKind kind, const std::string& body) {
  for (const Peer& peer :
       peers_)  // whoever cannot be told is found to be lost when it is read from
    if (peer.socket) send_frame(peer.socket.get(), kind, body, Deadline(sending_time));
}

void Nodes::report(const JobResult& own) {
  own_ = own;
  if (own.cause != Cause::none) stop();
  if (plan_.node != 0)
    tell_all(FrameKind::result, as_text(plan_.node, for_others(plan_.node, own)));
  look();
}

void Nodes::leave(const JobResult& own) {
  tell_all(FrameKind::result, as_text(plan_.node, for_others(plan_.node, own)));
}

/// When all nodes have reported or are lost: node 0 tells the others; they, without it, help
/// themselves.
void Nodes::conclude() {
  const auto known = [](const Peer& peer) { return peer.result.has_value(); };
  if (!own_ || !std::ranges::all_of(peers_, known)) return;
  std::vector<JobResult> results{*own_};
  for (const Peer& peer : peers_) results.push_back(*peer.result);
  const std::size_t first = first_cause(results);
  result_ = results[first];
  if (plan_.node != 0) return;
  const int node = static_cast<int>(first);
  tell_all(FrameKind::result, as_text(node, for_others(node, *result_)));
}

}  // namespace lockstep::dist
