#include "lockstep/dist/transport/tcp/mesh.h"

#include <algorithm>

namespace lockstep::dist {
namespace {

/// Every rank's address. Sets the token of the mesh: rank 0 adds a nonce to the job's token,
/// because any user of a machine can reach a port, and not every launcher hands over a token. Where
/// one does, it counts too: it has never been on the network.
std::vector<std::string> exchange_addresses(Rendezvous& rendezvous, const std::string& mine,
                                            Token& token) {
  std::string nonce;
  if (rendezvous.rank() == 0) {
    const Token random = random_token();
    nonce.assign(reinterpret_cast<const char*>(random.data()), random.size());
  }
  std::vector<std::string> addresses = rendezvous.all_gather("tcp addresses", nonce + mine);
  check<CommError>(addresses[0].size() > sizeof(Token), "[tcp] rank 0 gave no address");
  token = hmac(token, "mesh", {std::as_bytes(std::span(addresses[0]).first(sizeof(Token)))});
  addresses[0].erase(0, sizeof(Token));
  return addresses;
}

/// A connection with every other rank, by rank. A rank first connects to all lower ranks, in order,
/// and then accepts all higher ones: so the ranks are admitted one after the other.
std::vector<Connection> connect_all(Rendezvous& rendezvous) {
  ConnectOptions options{.credentials = rendezvous.credentials(),
                         .timeout = rendezvous.timeout(),
                         .purpose = Purpose::mesh,
                         .caller = "tcp",
                         .of_job = rendezvous.options().of_job,
                         .watch = [&](const auto& awaited) {
                           check_here(rendezvous, awaited);
                           if (rendezvous.options().watch) rendezvous.options().watch(awaited);
                         }};
  Endpoint here{.host = rendezvous.address()};
  Descriptor listener = listen_on(here);
  here.port = local_port(listener.get());
  const std::vector<std::string> addresses =
      exchange_addresses(rendezvous, here.text(), options.credentials.token);
  std::vector<Endpoint> endpoints;
  for (const std::string& text : addresses) endpoints.push_back(Endpoint::parse(text));
  check_reachable(endpoints, rendezvous.rank());

  const Deadline deadline(options.timeout);
  std::vector<Connection> lower;
  for (int peer = 0; peer < rendezvous.rank(); ++peer)
    lower.push_back(connect_to_rank(peer, endpoints[index(peer)], options, deadline));
  std::vector<Connection> sockets =
      accept_higher_ranks(std::move(listener), here, options, deadline);
  std::ranges::move(lower, sockets.begin());
  return sockets;
}

}  // namespace

void check_here(Rendezvous& rendezvous, const std::vector<int>& ranks) {
  const std::vector<int> gone = rendezvous.gone();
  if (const std::string reason = rendezvous.aborted(); !reason.empty()) throw PeerError(reason);
  for (const int rank : gone)
    if (std::ranges::count(ranks, rank) > 0) throw LostPeer(rank, Fault::gone);
}

std::vector<Connection> connect_mesh(Rendezvous& rendezvous) {
  if (rendezvous.size() == 1) return std::vector<Connection>(1);
  try {
    return connect_all(rendezvous);
  } catch (const Error& error) {
    rendezvous.abort(error.what());
    throw;
  }
}

}  // namespace lockstep::dist
