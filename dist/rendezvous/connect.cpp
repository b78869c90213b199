#include "lockstep/dist/rendezvous/connect.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

namespace lockstep::dist {

namespace {

/// How long the reason for a lost connection may take to arrive by another way (`watch`).
constexpr Seconds reason_time{0.2};

/// True if the other end has closed. It sends nothing before it is admitted, so bytes are an error.
bool has_closed(int socket) {
  std::byte byte{};
  return receive_some(socket, std::span(&byte, 1)) != 0;
}

/// Accepts the ranks above `options.credentials.rank`, one after the other.
class HigherRanks {
 public:
  HigherRanks(Descriptor listener, const Endpoint& where, const ConnectOptions& options)
      : options_(options),
        own_(options.credentials),
        where_(where),
        acceptor_(std::move(listener), own_, options.purpose),
        sockets_(index(own_.size)) {}
  HigherRanks(const HigherRanks&) = delete;
  HigherRanks& operator=(const HigherRanks&) = delete;
  ~HigherRanks() { remove_file(); }

  std::vector<Descriptor> accept_all();

 private:
  /// The higher ranks whose socket meets the condition.
  template <class F>
  std::vector<int> ranks_with(F&& condition) const {
    std::vector<int> ranks;
    for (int rank = own_.rank + 1; rank < own_.size; ++rank)
      if (condition(sockets_[index(rank)])) ranks.push_back(rank);
    return ranks;
  }
  std::string objection(const AcceptedPeer& peer) const;
  void take(AcceptedPeer& peer);
  void remove_file() {
    if (where_.is_unix()) ::unlink(std::exchange(where_.path, "").c_str());
  }
  void check_waiting_ranks();
  void decide(Decision decision, const std::string& reason = "");

  const ConnectOptions& options_;
  const Credentials& own_;
  Endpoint where_;
  Acceptor acceptor_;
  std::vector<Descriptor> sockets_;  // by rank
};

std::vector<Descriptor> HigherRanks::accept_all() {
  const Deadline deadline(options_.timeout);
  while (true) {
    const std::vector<int> missing = ranks_with([](const Descriptor& socket) { return !socket; });
    if (missing.empty()) break;
    if (options_.watch) options_.watch(missing);
    if (deadline.passed())
      decide(Decision::refused,
             fmt::format("[{}] after {:g} s at {} {} of a world of {}", options_.caller,
                         options_.timeout.count(), where_.text(),
                         describe_ranks(missing, "missing", options_.members), own_.size));
    for (AcceptedPeer& peer : acceptor_.wait(std::min(Seconds(0.02), deadline.left()))) take(peer);
    check_waiting_ranks();
  }
  remove_file();  // before any rank can go on, and perhaps be killed
  decide(Decision::accepted);
  return std::move(sockets_);
}

/// Why this peer cannot be admitted; empty if it can.
std::string HigherRanks::objection(const AcceptedPeer& peer) const {
  const auto say = [&](const auto& problem) {
    return fmt::format("[{}] {}", options_.caller, problem);
  };
  const std::string_view who = options_.members;
  if (peer.version != protocol_version)
    return say(fmt::format("a {0} speaks protocol version {1}, {0} {2} version {3}", who,
                           peer.version, own_.rank, protocol_version));
  if (peer.size != own_.size)
    return say(fmt::format("{0} {1} expects a world of {2}, {0} {3} one of {4}", who, peer.rank,
                           peer.size, own_.rank, own_.size));
  if (peer.rank < 0 || peer.rank >= own_.size)
    return say(fmt::format("{} {} in a world of {}", who, peer.rank, own_.size));
  if (peer.rank <= own_.rank || sockets_[index(peer.rank)])
    return say(fmt::format("{} {} has joined twice", who, peer.rank));
  return "";
}

void HigherRanks::take(AcceptedPeer& peer) {
  if (const std::string reason = objection(peer); !reason.empty()) {
    send_admission(peer.socket.get(), Decision::refused, reason);
    decide(Decision::refused, reason);
  }
  sockets_[index(peer.rank)] = std::move(peer.socket);
}

/// Throws if one of those that wait to be admitted is gone.
void HigherRanks::check_waiting_ranks() {
  const std::vector<int> gone =
      ranks_with([](const Descriptor& socket) { return socket && has_closed(socket.get()); });
  if (gone.empty()) return;
  if (options_.watch) options_.watch(gone);  // it may have said why before it left
  decide(Decision::peer_gone,
         fmt::format("[{}] {} before all {}s had joined", options_.caller,
                     describe_ranks(gone, "gone", options_.members), options_.members));
}

/// Tells all ranks that wait. Throws `reason` unless they are accepted.
void HigherRanks::decide(Decision decision, const std::string& reason) {
  for (const Descriptor& socket : sockets_)
    if (socket) send_admission(socket.get(), decision, reason);
  check<PeerError>(decision != Decision::peer_gone, "{}", reason);
  check<CommError>(decision != Decision::refused, "{}", reason);
}

/// After send_hello: true once `peer` has admitted us, false if it closed the connection.
bool await_admission(int socket, const std::string& me, const Endpoint& where,
                     const ConnectOptions& options) {
  // One second more than the acceptor waits: it knows who is missing, and will say it.
  const Seconds patience = options.timeout + Seconds(1);
  const Deadline deadline(patience);
  using enum Reply::Kind;
  Reply reply = authenticate(socket, options.credentials, options.purpose, deadline);
  if (reply.kind == accepted) reply = read_admission(socket, deadline);
  check<CommError>(reply.kind != refused, "{}", reply.refusal);
  check<PeerError>(reply.kind != peer_gone, "{}", reply.refusal);
  check<CommError>(reply.kind != not_authentic,
                   "{}: what answers at {} does not belong to this job", me, where.text());
  check<CommError>(reply.kind != timed_out, "{}: no answer from {} for {:g} s", me, where.text(),
                   patience.count());
  return reply.kind == accepted;
}

}  // namespace

std::vector<Descriptor> accept_higher_ranks(Descriptor listener, const Endpoint& where,
                                            const ConnectOptions& options) {
  return HigherRanks(std::move(listener), where, options).accept_all();
}

Descriptor connect_to_rank(int peer, const Endpoint& where, const ConnectOptions& options) {
  using std::chrono::milliseconds;
  const Credentials& own = options.credentials;
  const std::string me = fmt::format("[{}] {} {}", options.caller, options.members, own.rank);
  const auto watch = [&] {
    if (options.watch) options.watch({peer});
  };
  const Deadline deadline(options.timeout);
  std::string why = "timed out";
  bool reached = false;
  for (int attempt = 0; !deadline.passed(); ++attempt) {
    watch();
    Descriptor socket = send_hello(where, own, options.purpose, deadline, why);
    if (!socket && reached) {
      for (const Deadline patience(reason_time); options.watch && !patience.passed(); watch())
        std::this_thread::sleep_for(milliseconds(1));
      fail<PeerError>("{}: {} {} no longer listens on {}: {}", me, options.members, peer,
                      where.text(), why);
    }
    if (socket) {
      reached = true;
      if (await_admission(socket.get(), me, where, options)) return socket;
      why = fmt::format("closed without an answer: another job, or another {}?",
                        options.purpose == Purpose::nodes ? "secret" : "token");
    }
    std::this_thread::sleep_for(milliseconds(std::min(5 << std::min(attempt, 5), 100)));
  }
  fail<CommError>("{} did not find {} {} at {} within {:g} s: {}", me, options.members, peer,
                  where.text(), options.timeout.count(), why);
}

}  // namespace lockstep::dist
