#pragma once
/// Memory that all ranks of a machine map.

#include <cstddef>
#include <memory>
#include <string_view>

#include "lockstep/dist/rendezvous/rendezvous.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// One part of whole_pages(part_bytes) for each rank, zeroed, all of them mapped in a row; unmapped
/// with the last reference. Collective. Every rank touches its own part first, so that the pages
/// lie near it. Throws CommError, on every rank, if memory is short or the ranks ask for different
/// sizes.
std::shared_ptr<std::byte> share_memory(Rendezvous& rendezvous, std::string_view what,
                                        std::size_t part_bytes);

}  // namespace lockstep::dist
