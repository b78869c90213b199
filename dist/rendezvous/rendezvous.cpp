#include "lockstep/dist/rendezvous/rendezvous.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "lockstep/core/hash.h"
#include "lockstep/dist/rendezvous/running_time.h"
#include "lockstep/dist/rendezvous/surroundings/socket_folder.h"

namespace lockstep::dist {

/// Replaces an empty reason, because an empty aborted() means that no rank gave up. It is so short
/// that a string of it needs no memory.
constexpr std::string_view no_reason = "a rank gave up";

/// The one that watch() was called for.
std::atomic<Rendezvous*> of_this_process{nullptr};

Rendezvous::Rendezvous(const RendezvousOptions& options, std::vector<Connection> connections)
    : options_(options) {
  for (Connection& connection : connections)
    peers_.push_back({.connection = std::move(connection)});
}

Rendezvous::~Rendezvous() {
  Rendezvous* self = this;
  of_this_process.compare_exchange_strong(self, nullptr);
  leave();
}

void Rendezvous::watch(std::function<void()> tell_loss) {
  of_this_process = this;
  [[maybe_unused]] static const int once = std::atexit([] {
    if (Rendezvous* const rendezvous = of_this_process) rendezvous->leave();
  });
  std::vector<int> sockets;
  for (const Peer& peer : peers_) sockets.push_back(peer.connection.get());
  watchdog_ = std::make_unique<Watchdog>(rank(), sockets, options_.timeout, std::move(tell_loss));
}

/// True if a whole frame is there.
bool Rendezvous::read_frame(Peer& peer) {
  try {
    return peer.reader.read(peer.connection) == FrameReader::State::complete;
  } catch (const CommError& error) {
    give_up<CommError>("[rendezvous] from {} {}: {}", options_.members, &peer - peers_.data(),
                       error.what());
  }
}

/// Takes only `abort` and `leave` frames. Any other one waits for its exchange.
void Rendezvous::read_frames() {
  for (Peer& peer : peers_) {
    while (peer.connection && read_frame(peer)) {
      const FrameKind kind = peer.reader.peek().kind;
      if (kind != FrameKind::abort && kind != FrameKind::leave) break;
      const std::string reason = peer.reader.take().body;
      if (kind == FrameKind::leave) {
        peer.left = true;
        if (watchdog_) watchdog_->left(static_cast<int>(&peer - peers_.data()));
        continue;
      }
      if (watchdog_) watchdog_->heard();
      if (!aborted_.empty()) continue;
      aborted_ = reason.empty() ? no_reason : reason;
      if (rank() == 0) pass_on_reason();
    }
    if (watchdog_ && peer.reader.ended() && !peer.left) watchdog_->heard();
  }
}

/// Waits until a frame of every connected peer is there.
void Rendezvous::await_frames(std::string_view what) {
  // Rank 0 must be the first whose time is up: it alone knows who is missing.
  const Seconds limit = options_.timeout + (rank() == 0 ? Seconds(0) : Seconds(1));
  constexpr int longest_sleep = 50;  // milliseconds: it looks at the clock so often
  RunningTime waited;
  while (true) {
    read_frames();
    if (!aborted_.empty()) throw PeerError(aborted_);
    std::vector<int> missing, gone;
    std::vector<pollfd> entries;
    for (int r = 0; r < size(); ++r) {
      const Peer& peer = peers_[index(r)];
      if (!peer.connection || peer.reader.complete()) continue;
      (peer.reader.ended() ? gone : missing).push_back(r);
      entries.push_back({peer.connection.get(), POLLIN, 0});
    }
    if (!gone.empty())
      give_up_blaming({gone, Fault::gone},
                      PeerError(fmt::format("[rendezvous] {} in '{}'",
                                            describe_ranks(gone, "gone", options_.members), what)));
    if (missing.empty()) return;
    if (options_.watch) options_.watch(missing);
    if (waited.look(std::chrono::steady_clock::now().time_since_epoch()) > limit)
      give_up_blaming({missing, Fault::missing},
                      CommError(fmt::format("[rendezvous] '{}': after {:g} s {}", what,
                                            options_.timeout.count(),
                                            describe_ranks(missing, "missing", options_.members))));
    ::poll(entries.data(), entries.size(), longest_sleep);
  }
}

/// The frame that await_frames() has seen.
Frame Rendezvous::take_frame(int peer, FrameKind kind, std::string_view what) {
  Frame frame = peers_[index(peer)].reader.take();
  if (frame.kind != kind)
    give_up<CommError>(
        "[rendezvous] {0} {1} in '{2}': {0} {3} sent a frame of kind '{4}', not '{5}'",
        options_.members, rank(), what, peer, static_cast<char>(frame.kind),
        static_cast<char>(kind));
  return frame;
}

void Rendezvous::send(int peer, FrameKind kind, std::string_view body, std::string_view what,
                      int descriptor) {
  const Transfer transfer = send_frame(peers_[index(peer)].connection, kind, body,
                                       Deadline(options_.timeout), descriptor);
  if (transfer == Transfer::done) return;
  read_frames();  // the peer may have said why
  if (!aborted_.empty()) throw PeerError(aborted_);
  give_up<PeerError>("[rendezvous] {} {} {} in '{}'", options_.members, peer,
                     transfer == Transfer::closed ? "is gone" : "takes no data", what);
}

std::vector<std::string> Rendezvous::all_gather(std::string_view what, std::string_view mine) {
  if (rank() == 0) {
    const std::vector<std::string> parts = gather_parts(what, mine);
    const std::string everything = pack(parts);
    for (int r = 1; r < size(); ++r) send(r, FrameKind::everything, everything, what);
    return parts;
  }
  send(0, FrameKind::gather, pack({std::string(what), std::string(mine)}), what);
  await_frames(what);
  std::vector<std::string> parts = unpack(take_frame(0, FrameKind::everything, what).body);
  if (parts.size() != peers_.size())
    give_up<CommError>("[rendezvous] '{}': {} parts in a world of {}", what, parts.size(), size());
  return parts;
}

/// On rank 0.
std::vector<std::string> Rendezvous::gather_parts(std::string_view what, std::string_view mine) {
  await_frames(what);
  std::vector<std::string> parts{std::string(mine)};
  for (int r = 1; r < size(); ++r) {
    std::vector<std::string> given = unpack(take_frame(r, FrameKind::gather, what).body);
    if (given.size() != 2 || given[0] != what)
      give_up<CommError>("[rendezvous] {0} {1} is in '{2}', {0} 0 in '{3}'", options_.members, r,
                         given.empty() ? "" : given[0], what);
    parts.push_back(std::move(given[1]));
  }
  return parts;
}

Descriptor Rendezvous::share_descriptor(std::string_view what, Descriptor own) {
  if (size() == 1) return own;
  check<CommError>(
      options_.address.is_unix(),
      "[rendezvous] '{}': a file descriptor does not travel over {}; use the tcp transport", what,
      options_.address.text());
  if (rank() == 0) {
    for (int r = 1; r < size(); ++r) send(r, FrameKind::descriptor, what, what, own.get());
    return own;
  }
  await_frames(what);
  Frame frame = take_frame(0, FrameKind::descriptor, what);
  if (frame.body != what || !frame.descriptor)
    give_up<CommError>("[rendezvous] rank {} is in '{}', rank 0 in '{}'", rank(), what, frame.body);
  return std::move(frame.descriptor);
}

std::string Rendezvous::address() const {
  if (options_.one_machine) return "127.0.0.1";
  if (!options_.own_address.empty()) return options_.own_address;
  const std::vector<std::string> all = local_addresses();
  // Rank 0 may reach ranks beside it by loopback.
  const auto far = std::ranges::find_if_not(all, is_loopback);
  if (far != all.end()) return *far;
  return all.empty() ? "127.0.0.1" : all.back();
}

std::vector<std::string> Rendezvous::local_addresses() const {
  std::vector<std::string> addresses;
  for (const Peer& peer : peers_)
    if (peer.connection) addresses.push_back(local_address(peer.connection.get()));
  return addresses;
}

std::vector<int> Rendezvous::gone() {
  read_frames();
  std::vector<int> ranks;
  for (int r = 0; r < size(); ++r)
    if (peers_[index(r)].reader.ended()) ranks.push_back(r);
  return ranks;
}

void Rendezvous::pass_on_reason() noexcept {
  if (::getpid() != process_) return;
  try {
    for (Peer& peer : peers_)
      if (peer.connection && !peer.reader.ended())
        send_frame(peer.connection, FrameKind::abort, std::string_view(aborted_).substr(0, 4096),
                   Deadline(Seconds(0)));
  } catch (const std::exception&) {
    // Nothing more can be done: the others will notice that we are gone.
  }
}

void Rendezvous::leave() noexcept {
  if (::getpid() != process_) return;  // a child that was forked is no rank
  try {
    for (Peer& peer : peers_)
      if (aborted_.empty() && peer.connection && !peer.reader.ended())
        send_frame(peer.connection, FrameKind::leave, "", Deadline(Seconds(0)));
  } catch (const std::exception&) {  // the others see the end of the connection
  }
}

void Rendezvous::abort(std::string_view reason) noexcept {
  if (watchdog_) watchdog_->heard();
  if (!aborted_.empty()) return;
  try {
    aborted_ = reason.empty() ? no_reason : reason;
  } catch (const std::bad_alloc&) {
    aborted_ = no_reason;
  }
  pass_on_reason();
}

std::string Rendezvous::aborted() {
  read_frames();
  return aborted_;
}

std::vector<Connection> Rendezvous::take_connections() && {
  std::vector<Connection> connections;
  for (Peer& peer : peers_) connections.push_back(std::move(peer.connection));
  return connections;
}

template <class E>
void Rendezvous::give_up_blaming(const Blame& blame, const E& error) {
  abort(error.what());
  throw blaming(options_.of_job ? blame : Blame{}, error);
}

template <class E, class... Args>
void Rendezvous::give_up(fmt::format_string<Args...> reason, Args&&... args) {
  const E error(fmt::format(reason, std::forward<Args>(args)...));
  abort(error.what());
  throw error;
}

std::shared_ptr<Rendezvous> join_rendezvous(const RendezvousOptions& options, Descriptor listener) {
  const Credentials& own = options.credentials;
  check<UsageError>(own.size >= 1 && own.rank >= 0 && own.rank < own.size,
                    "[rendezvous] rank {} in a world of {}", own.rank, own.size);
  std::vector<Connection> sockets(index(own.size));
  if (own.rank > 0) {
    sockets[0] = connect_to_rank(0, options.address, options, Deadline(options.timeout));
  } else if (own.size > 1) {
    if (!listener) listener = listen_on(options.address, options.one_machine);
    sockets = accept_higher_ranks(std::move(listener), options.address, options,
                                  Deadline(options.timeout));
  }
  return std::make_shared<Rendezvous>(options, std::move(sockets));
}

std::string private_folder() {
  const std::string folder = fmt::format("{}/lockstep-{}", socket_base(), geteuid());
  const int problem = ::mkdir(folder.c_str(), 0700) == 0 ? 0 : errno;
  check<CommError>(problem == 0 || problem == EEXIST, "[rendezvous] cannot make {}: {}", folder,
                   system_message(problem));
  struct stat status {};
  const bool ours = lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                    status.st_uid == geteuid() && (status.st_mode & 077) == 0;
  check<CommError>(
      ours, "[rendezvous] {} must be a folder of this user that is closed to others (mode 0700)",
      folder);
  return folder;
}

RendezvousOptions rendezvous_options(const LaunchInfo& launch, Seconds timeout) {
  RendezvousOptions options;
  options.one_machine = launch.one_machine();
  options.timeout = timeout;
  options.credentials = {{}, fnv1a(launch.job), launch.rank, launch.size};
  if (!options.one_machine && !launch.interface.empty())
    options.own_address = interface_address(launch.interface);
  if (launch.token_descriptor >= 0) options.credentials.token = read_token(launch.token_descriptor);
  if (!launch.rendezvous.empty()) {
    options.address = Endpoint::parse(launch.rendezvous);
  } else if (launch.size > 1) {
    options.address.path =
        fmt::format("{}/{}-{:016x}", private_folder(), launch.launcher, fnv1a(launch.job));
  }
  return options;
}

}  // namespace lockstep::dist
