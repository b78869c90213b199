#pragma once
/// How the connections of a rendezvous come to be: rank 0 listens and gathers, the others look for it.

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/rendezvous/rendezvous.h"

namespace lockstep::dist {

/// Rank 0: a connection with every other rank, by rank (its own stays empty). The socket file is
/// gone when this returns or throws. For errors see join_rendezvous. `listener`: that listens at the
/// address already, or empty.
std::vector<Descriptor> gather_ranks(const RendezvousOptions& options, Descriptor listener = {});

/// A folder that only this user can look into, made if missing: in XDG_RUNTIME_DIR, else in /tmp.
/// Throws CommError if it belongs to somebody else or is open to others.
std::string private_folder();

/// The other ranks: the connection with rank 0, once all ranks have joined. Tries again until the
/// timeout while nobody listens.
Descriptor join_rank_0(const RendezvousOptions& options);

}  // namespace lockstep::dist
