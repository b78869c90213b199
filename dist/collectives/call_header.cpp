#include "lockstep/dist/collectives/call_header.h"

#include <algorithm>
#include <cstring>

#include "lockstep/core/hash.h"

namespace lockstep::dist {

void CallHeader::set_name(std::string_view text) {
  name_hash = fnv1a(text);
  std::copy_n(text.begin(), std::min(text.size(), name.size()), name.begin());
}

std::string describe(const CallHeader& header) {
  std::string text = fmt::format("{} #{} '{}'", name_of(header.operation), header.sequence,
                                 header.printable_name());
  if (header.operation == Operation::barrier) return text;
  text += fmt::format(" of {} {}", header.count, header.dtype);
  if (header.operation == Operation::broadcast)
    return text + fmt::format(" from root {}", header.root);
  if (header.algorithm != Algorithm::automatic)  // MPI's choice is not known
    text += fmt::format(" ({})", name_of(header.algorithm));
  if (header.region != RegionPlace::none)
    text += fmt::format(" at byte {} of region {}", header.offset, header.region);
  return text;
}

void compare(const CallHeader& mine, const CallHeader& theirs, int peer) {
  if (std::memcmp(&mine, &theirs, sizeof mine) == 0) [[likely]]
    return;
  check<CommError>(
      theirs.magic == mine.magic,
      "rank {} sent something that is no header (it begins with {:#010x}, not {:#010x})", peer,
      theirs.magic, mine.magic);
  check<CommError>(theirs.version == mine.version,
                   "rank {} speaks version {} of the protocol, this rank version {}", peer,
                   theirs.version, mine.version);
  fail<CommError>("rank {} called {}, this rank {}", peer, describe(theirs), describe(mine));
}

}  // namespace lockstep::dist
