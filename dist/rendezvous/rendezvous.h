#pragma once
/// The rendezvous of a world: a star of connections with rank 0 in the middle. Every rank gives
/// some bytes and gets those of all ranks. Transports are built with it. It stays open afterwards,
/// so that the end of a process is noticed at once.
///
///     1   2   3
///      \  |  /      how connections begin: handshake.h; what is sent over them: frames.h
///        [ 0 ]
///
/// Thread-safety: one Rendezvous belongs to one rank and is used by one thread at a time.

#include <unistd.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/connect.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/rendezvous/frames.h"
#include "lockstep/dist/rendezvous/watchdog.h"

namespace lockstep::dist {

/// `timeout` limits how long all ranks may take to join, and each exchange afterwards.
struct RendezvousOptions : ConnectOptions {
  Endpoint address;  ///< where rank 0 listens
  bool one_machine = true;
  std::string own_address = {};  ///< what address() says on several machines, if not empty
};

class Rendezvous {
 public:
  /// See join_rendezvous(). `connections`: rank 0's with all others, by rank; the others' with
  /// rank 0.
  Rendezvous(const RendezvousOptions& options, std::vector<Connection> connections);

  /// Tells the others that this rank leaves in peace, unless it gave up. Best effort.
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  /// From now on a thread ends this process if the job has failed and this rank has not heard of it
  /// for timeout() (watchdog.h). If the process calls std::exit, it leaves in peace. For one
  /// Rendezvous of a process: that of its job. `tell_loss`: as Watchdog.
  void watch(std::function<void()> tell_loss = {});

  int rank() const { return options_.credentials.rank; }
  int size() const { return options_.credentials.size; }
  /// With these another connection of this job (a transport's) authenticates itself.
  const Credentials& credentials() const { return options_.credentials; }
  Seconds timeout() const { return options_.timeout; }
  /// As it was joined: whether ranks have the numbers of the job, and who ends waits in vain.
  const ConnectOptions& options() const { return options_; }

  /// Element r of the result is what rank r gave. Collective and blocking. `what` names the
  /// exchange in errors. Throws CommError after the timeout, with the ranks that did not arrive, or
  /// if ranks are in different exchanges; PeerError if a rank is gone or gave up. All ranks' bytes
  /// together must be less than 16 MiB.
  std::vector<std::string> all_gather(std::string_view what, std::string_view mine);

  /// Rank 0's file descriptor, duplicated into every rank; rank 0 gets its own back. Collective.
  /// Throws CommError where ranks are on several machines.
  Descriptor share_descriptor(std::string_view what, Descriptor own);

  /// Where the other ranks can reach this one: "127.0.0.1" on one machine, else the address that
  /// was asked for (LOCKSTEP_INTERFACE), else the local address of a connection with another rank.
  std::string address() const;
  /// The local addresses of the connections.
  std::vector<std::string> local_addresses() const;

  /// The ranks whose connection has ended. Rank 0 sees all ranks, the others see rank 0. Does not
  /// block.
  std::vector<int> gone();

  /// Tells the others that this rank gives up, and why. Rank 0 tells all ranks. The others tell
  /// rank 0, which passes it on at its next call. The first reason wins. Best effort, does not
  /// block.
  void abort(std::string_view reason) noexcept;
  /// The reason with which a rank gave up, if it has arrived; else empty. Does not block.
  std::string aborted();

  /// Ends the rendezvous and hands over its connections, for another protocol of the caller. Only
  /// directly after an exchange: no frame is left in them that was read in part.
  std::vector<Connection> take_connections() &&;

 private:
  struct Peer {
    Connection connection;  // empty: not connected
    FrameReader reader{};
    bool left = false;  // in peace
  };

  bool read_frame(Peer& peer);
  void read_frames();
  void await_frames(std::string_view what);
  Frame take_frame(int peer, FrameKind kind, std::string_view what);
  void send(int peer, FrameKind kind, std::string_view body, std::string_view what,
            int descriptor = -1);
  std::vector<std::string> gather_parts(std::string_view what, std::string_view mine);
  void pass_on_reason() noexcept;
  void leave() noexcept;
  template <class E>
  [[noreturn]] void give_up_blaming(const Blame& blame, const E& error);
  template <class E, class... Args>
  [[noreturn]] void give_up(fmt::format_string<Args...> reason, Args&&... args);

  RendezvousOptions options_;
  std::vector<Peer> peers_;  // by rank
  std::string aborted_;
  int process_ = ::getpid();
  std::unique_ptr<Watchdog> watchdog_;  // ends before the connections do
};

/// Meets the other ranks: blocks until all have joined; errors as in connect.h. Rank 0 may come
/// after the others. `listener`: rank 0 listens at the address already. A world of 1 opens nothing.
std::shared_ptr<Rendezvous> join_rendezvous(const RendezvousOptions& options,
                                            Descriptor listener = {});

/// The options for what a launcher says. The address is `launch.rendezvous`, else a socket in
/// private_folder(), named after the job. Throws what private_folder(), read_token(),
/// Endpoint::parse() and interface_address() throw.
RendezvousOptions rendezvous_options(const LaunchInfo& launch, Seconds timeout);

/// A folder that only this user can look into (mode 0700), made if missing, in socket_base(): the
/// same for all ranks. Throws CommError if it belongs to another user or is open to others.
std::string private_folder();

}  // namespace lockstep::dist
