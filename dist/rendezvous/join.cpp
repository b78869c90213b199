#include "lockstep/dist/rendezvous/join.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "lockstep/core/hash.h"
#include "lockstep/dist/rendezvous/interfaces.h"

namespace lockstep::dist {

namespace {

/// The socket's file goes when the rendezvous ends, however it ends.
class SocketFile {
 public:
  explicit SocketFile(const Endpoint& where) : path_(where.path) {}
  SocketFile(const SocketFile&) = delete;
  SocketFile& operator=(const SocketFile&) = delete;
  ~SocketFile() { remove(); }
  void remove() {
    if (!path_.empty()) ::unlink(path_.c_str());
    path_.clear();
  }

 private:
  std::string path_;
};

/// Why this peer cannot be let in; empty if it can.
std::string objection(const AcceptedPeer& peer, const RendezvousOptions& options,
                      const std::vector<Descriptor>& joined) {
  const Credentials& own = options.credentials;
  const std::string_view who = options.members;
  if (peer.version != protocol_version)
    return fmt::format("[rendezvous] a {0} speaks protocol version {1}, {0} 0 version {2}", who,
                       peer.version, protocol_version);
  if (peer.size != own.size)
    return fmt::format("[rendezvous] {0} {1} expects a world of {2}, {0} 0 one of {3}", who,
                       peer.rank, peer.size, own.size);
  if (peer.rank < 0 || peer.rank >= own.size)
    return fmt::format("[rendezvous] {} {} in a world of {}", who, peer.rank, own.size);
  if (peer.rank == 0 || joined[static_cast<std::size_t>(peer.rank)])
    return fmt::format("[rendezvous] {} {} has joined twice", who, peer.rank);
  return "";
}

/// True if the other end has closed. Nothing is sent before the answer, so bytes are wrong as well.
bool has_left(int socket) {
  std::byte byte{};
  return receive_some(socket, std::span(&byte, 1)) != 0;
}

/// The ranks in {1, ...} for which `is` holds.
template <class F>
std::vector<int> ranks_that(const std::vector<Descriptor>& sockets, F&& is) {
  std::vector<int> result;
  for (std::size_t r = 1; r < sockets.size(); ++r)
    if (is(sockets[r])) result.push_back(static_cast<int>(r));
  return result;
}

}  // namespace

std::string describe_ranks(const std::vector<int>& ranks, std::string_view state,
                           std::string_view who) {
  std::string list;
  for (const int rank : ranks) list += (list.empty() ? "" : ", ") + std::to_string(rank);
  const bool one = ranks.size() == 1;
  return fmt::format("{}{} {} {} {}", who, one ? "" : "s", list, one ? "is" : "are", state);
}

std::string private_folder() {
  const char* base = std::getenv("XDG_RUNTIME_DIR");
  const std::string folder =
      fmt::format("{}/lockstep-{}", base && ::access(base, W_OK) == 0 ? base : "/tmp", geteuid());
  const int made = ::mkdir(folder.c_str(), 0700);
  check<CommError>(made == 0 || errno == EEXIST, "[rendezvous] cannot make {}: {}", folder,
                   system_message(errno));
  struct stat status {};
  const bool ours = lstat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                    status.st_uid == geteuid() && (status.st_mode & 077) == 0;
  check<CommError>(
      ours, "[rendezvous] {} must be a folder of this user that is closed to others (mode 0700)",
      folder);
  return folder;
}

std::vector<Descriptor> gather_ranks(const RendezvousOptions& options, Descriptor listener) {
  const Credentials& own = options.credentials;
  const ListenScope scope =
      options.one_machine ? ListenScope::this_machine : ListenScope::other_machines;
  if (!listener) listener = listen_on(options.address, scope);
  Acceptor acceptor(std::move(listener), own, options.purpose);
  SocketFile file(options.address);
  const Deadline deadline(options.timeout);
  std::vector<Descriptor> joined(static_cast<std::size_t>(own.size));
  const auto refuse_all = [&](Admission admission, const std::string& reason) {
    for (const Descriptor& socket : joined)
      if (socket) answer(socket.get(), admission, reason);
    if (admission == Admission::peer_gone) throw PeerError(reason);
    throw CommError(reason);
  };

  std::vector<int> missing;
  while (
      !(missing = ranks_that(joined, [](const Descriptor& socket) { return !socket; })).empty()) {
    if (deadline.passed())
      refuse_all(Admission::refused,
                 fmt::format("[rendezvous] after {:g} s at {} {} of a world of {}",
                             options.timeout.count(), options.address.text(),
                             describe_ranks(missing, "missing", options.members), own.size));
    for (AcceptedPeer& peer : acceptor.wait(std::min(Seconds(0.02), deadline.left()))) {
      if (const std::string reason = objection(peer, options, joined); !reason.empty()) {
        answer(peer.socket.get(), Admission::refused, reason);
        refuse_all(Admission::refused, reason);
      }
      joined[static_cast<std::size_t>(peer.rank)] = std::move(peer.socket);
    }
    const std::vector<int> left = ranks_that(
        joined, [](const Descriptor& socket) { return socket && has_left(socket.get()); });
    if (!left.empty())
      refuse_all(Admission::peer_gone,
                 fmt::format("[rendezvous] {} before all {}s had joined",
                             describe_ranks(left, "gone", options.members), options.members));
  }
  file.remove();  // before anybody can go on and perhaps be killed
  for (const Descriptor& socket : joined)
    if (socket) answer(socket.get(), Admission::accepted);
  return joined;
}

Descriptor join_rank_0(const RendezvousOptions& options) {
  const Credentials& own = options.credentials;
  const std::string where = options.address.text();
  const std::string me = fmt::format("[rendezvous] {} {}", options.members, own.rank);
  const Deadline deadline(options.timeout);
  std::string why;
  bool greeted = false;
  for (int attempt = 0; !deadline.passed(); ++attempt) {
    Descriptor socket = greet(options.address, own, options.purpose, deadline, why);
    check<PeerError>(socket || !greeted, "{}: {} 0 no longer listens on {}: {}", me,
                     options.members, where, why);
    if (socket) {
      greeted = true;
      // A second more than rank 0 takes: it knows who is missing and will say so.
      const Seconds patience = options.timeout + Seconds(1);
      const Deadline end(patience);
      using enum Reply::Kind;
      Reply reply = prove(socket.get(), own, options.purpose, end);
      if (reply.kind == accepted) reply = read_answer(socket.get(), end);
      check<CommError>(reply.kind != refused, "{}", reply.refusal);
      check<PeerError>(reply.kind != peer_gone, "{}", reply.refusal);
      check<CommError>(reply.kind != stranger, "{}: what answers at {} does not belong to this job",
                       me, where);
      check<CommError>(reply.kind != timed_out, "{}: no answer from {} for {:g} s", me, where,
                       patience.count());
      if (reply.kind == accepted) return socket;
      why = fmt::format("closed without an answer: another job, or another {}?",
                        options.purpose == Purpose::nodes ? "secret" : "token");
    }
    std::this_thread::sleep_for(
        std::chrono::milliseconds(std::min(5 << std::min(attempt, 5), 100)));
  }
  fail<CommError>("{} did not find {} 0 at {} within {:g} s: {}", me, options.members, where,
                  options.timeout.count(), why);
}

RendezvousOptions rendezvous_options(const Launch& launch, Seconds timeout) {
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
