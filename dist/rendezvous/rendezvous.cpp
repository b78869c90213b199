#include "lockstep/dist/rendezvous/rendezvous.h"

#include <poll.h>

#include <algorithm>

#include "lockstep/dist/rendezvous/frame.h"
#include "lockstep/dist/rendezvous/join.h"

namespace lockstep::dist {

namespace {

/// What stands for an empty reason, since an empty aborted() means that nobody gave up. So short
/// that a string of it needs no memory.
constexpr std::string_view no_reason = "a rank gave up";

/// The star over sockets. Rank 0 is connected with everybody, the others with rank 0 alone.
class SocketStore final : public Rendezvous {
 public:
  SocketStore(const RendezvousOptions& options, std::vector<Descriptor> sockets)
      : options_(options) {
    for (Descriptor& socket : sockets) peers_.push_back({std::move(socket), {}, false});
  }

  int rank() const override { return options_.credentials.rank; }
  int size() const override { return options_.credentials.size; }
  const Credentials& credentials() const override { return options_.credentials; }
  Seconds timeout() const override { return options_.timeout; }

  std::vector<std::string> all_gather(std::string_view what, std::string_view mine) override;
  int share_descriptor(std::string_view what, int descriptor) override;
  std::string address() const override;
  std::vector<int> gone() override;
  void abort(std::string_view reason) noexcept override;
  std::string aborted() override;

 private:
  struct Peer {
    Descriptor socket;  // empty: not connected
    FrameReader reader;
    bool gone = false;
  };

  void look();
  void look_at(int rank);
  void await(std::string_view what);
  Frame expect(int peer, FrameKind kind, std::string_view what);
  void send(int peer, FrameKind kind, std::string_view body, std::string_view what,
            int descriptor = -1);
  void tell(std::string_view reason) noexcept;
  template <class E>
  [[noreturn]] void give_up(const std::string& reason);

  RendezvousOptions options_;
  std::vector<Peer> peers_;  // by rank
  std::string aborted_;
};

/// Reads what peers have sent. Only "gives up" is dealt with here; other frames wait for their
/// exchange.
void SocketStore::look() {
  for (int r = 0; r < size(); ++r)
    if (peers_[static_cast<std::size_t>(r)].socket) look_at(r);
}

void SocketStore::look_at(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  while (!peer.gone) {
    const FrameReader::State state = peer.reader.read(peer.socket.get());
    if (state == FrameReader::State::ended) peer.gone = true;
    if (state != FrameReader::State::complete) return;
    if (peer.reader.peek().kind != FrameKind::abort) return;
    const std::string reason = peer.reader.take().body;
    if (!aborted_.empty()) continue;
    aborted_ = reason.empty() ? no_reason : reason;
    if (this->rank() == 0) tell(aborted_);
  }
}

/// Waits until a frame of every connected peer is there.
void SocketStore::await(std::string_view what) {
  // Rank 0 must be the first to lose patience: it alone knows who is missing.
  const Deadline deadline(options_.timeout + (rank() == 0 ? Seconds(0) : Seconds(1)));
  while (true) {
    look();
    if (!aborted_.empty()) throw PeerError(aborted_);
    std::vector<int> missing;
    std::vector<int> lost;
    std::vector<pollfd> entries;
    for (int r = 0; r < size(); ++r) {
      const Peer& peer = peers_[static_cast<std::size_t>(r)];
      if (!peer.socket || peer.reader.complete()) continue;
      (peer.gone ? lost : missing).push_back(r);
      entries.push_back({peer.socket.get(), POLLIN, 0});
    }
    if (!lost.empty())
      give_up<PeerError>(
          fmt::format("[rendezvous] {} in '{}'", describe_ranks(lost, "gone"), what));
    if (missing.empty()) return;
    if (deadline.passed())
      give_up<CommError>(fmt::format("[rendezvous] '{}': after {:g} s {}", what,
                                     options_.timeout.count(), describe_ranks(missing, "missing")));
    ::poll(entries.data(), entries.size(), deadline.milliseconds());
  }
}

/// The frame that await() has seen.
Frame SocketStore::expect(int peer, FrameKind kind, std::string_view what) {
  Frame frame = peers_[static_cast<std::size_t>(peer)].reader.take();
  if (frame.kind != kind)
    give_up<CommError>(
        fmt::format("[rendezvous] rank {} in '{}': rank {} sent a frame of kind '{}', not '{}'",
                    rank(), what, peer, static_cast<char>(frame.kind), static_cast<char>(kind)));
  return frame;
}

void SocketStore::send(int peer, FrameKind kind, std::string_view body, std::string_view what,
                       int descriptor) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  const Transfer transfer =
      send_frame(to.socket.get(), kind, body, Deadline(options_.timeout), descriptor);
  if (transfer == Transfer::done) return;
  look_at(peer);  // it may have said why
  if (!aborted_.empty()) throw PeerError(aborted_);
  give_up<PeerError>(fmt::format("[rendezvous] rank {} {} in '{}'", peer,
                                 transfer == Transfer::closed ? "is gone" : "takes no data", what));
}

std::vector<std::string> SocketStore::all_gather(std::string_view what, std::string_view mine) {
  std::vector<std::string> parts;
  if (rank() != 0) {
    send(0, FrameKind::gather, pack({std::string(what), std::string(mine)}), what);
    await(what);
    parts = unpack(expect(0, FrameKind::everything, what).body);
    if (parts.size() != peers_.size())
      give_up<CommError>(fmt::format("[rendezvous] '{}': {} ranks answered in a world of {}", what,
                                     parts.size(), size()));
    return parts;
  }
  await(what);
  parts.emplace_back(mine);
  for (int r = 1; r < size(); ++r) {
    std::vector<std::string> given = unpack(expect(r, FrameKind::gather, what).body);
    if (given.size() != 2 || given[0] != what)
      give_up<CommError>(fmt::format("[rendezvous] rank {} is in '{}', rank 0 in '{}'", r,
                                     given.empty() ? "" : given[0], what));
    parts.push_back(std::move(given[1]));
  }
  const std::string everything = pack(parts);
  for (int r = 1; r < size(); ++r) send(r, FrameKind::everything, everything, what);
  return parts;
}

int SocketStore::share_descriptor(std::string_view what, int descriptor) {
  if (size() == 1) return descriptor;
  check<CommError>(
      options_.address.is_unix(),
      "[rendezvous] '{}': a file descriptor does not travel over {}; use the tcp transport", what,
      options_.address.text());
  if (rank() == 0) {
    for (int r = 1; r < size(); ++r) send(r, FrameKind::descriptor, what, what, descriptor);
    return descriptor;
  }
  await(what);
  Frame frame = expect(0, FrameKind::descriptor, what);
  if (frame.body != what || !frame.descriptor)
    give_up<CommError>(
        fmt::format("[rendezvous] rank {} is in '{}', rank 0 in '{}'", rank(), what, frame.body));
  return frame.descriptor.release();
}

std::string SocketStore::address() const {
  std::string result = "127.0.0.1";
  if (options_.one_machine) return result;
  if (!options_.own_address.empty()) return options_.own_address;
  for (const Peer& peer : peers_) {  // rank 0 reaches ranks beside it by loopback, perhaps
    if (peer.socket) result = local_address(peer.socket.get());
    if (!result.starts_with("127.") && result != "::1") break;
  }
  return result;
}

std::vector<int> SocketStore::gone() {
  look();
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (peers_[static_cast<std::size_t>(r)].gone) ranks.push_back(r);
  return ranks;
}

void SocketStore::tell(std::string_view reason) noexcept {
  try {
    for (const Peer& peer : peers_)
      if (peer.socket && !peer.gone)
        send_frame(peer.socket.get(), FrameKind::abort, reason.substr(0, 4096),
                   Deadline(Seconds(0)));
  } catch (const std::exception&) {
    // Nothing more can be done: the others will notice that we are gone.
  }
}

void SocketStore::abort(std::string_view reason) noexcept {
  if (!aborted_.empty()) return;
  try {
    aborted_ = reason.empty() ? no_reason : reason;
  } catch (const std::bad_alloc&) {
    aborted_ = no_reason;
  }
  tell(aborted_);
}

std::string SocketStore::aborted() {
  look();
  return aborted_;
}

template <class E>
void SocketStore::give_up(const std::string& reason) {
  abort(reason);
  throw E(reason);
}

}  // namespace

std::shared_ptr<Rendezvous> join_rendezvous(const RendezvousOptions& options, Descriptor listener) {
  const Credentials& own = options.credentials;
  check<UsageError>(own.size >= 1 && own.rank >= 0 && own.rank < own.size,
                    "[rendezvous] rank {} in a world of {}", own.rank, own.size);
  std::vector<Descriptor> sockets(static_cast<std::size_t>(own.size));
  if (own.size > 1) {
    if (own.rank == 0)
      sockets = gather_ranks(options, std::move(listener));
    else
      sockets[0] = join_rank_0(options);
  }
  return std::make_shared<SocketStore>(options, std::move(sockets));
}

}  // namespace lockstep::dist
