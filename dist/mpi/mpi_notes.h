#pragma once
/// What the ranks of an MPI communicator tell each other beside its collectives, which know neither
/// timeouts nor names: that a rank gives up and why, that a rank leaves, and in which call each is,
/// once a rank has waited for long. MPI keeps these messages apart from those of the collectives.
///
/// Thread-safety: as mpi.h.

#include <mpi.h>

#include <array>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "lockstep/dist/collectives/call_header.h"

namespace lockstep::dist {

struct MpiNote {
  enum class Kind : std::uint8_t {
    waits,    ///< in the call with this header
    leaves,   ///< has carried out `calls` calls and will carry out no more
    gave_up,  ///< for the reason in `text`
  };

  Kind kind = Kind::waits;
  int from = -1;  ///< the rank that sent it, in a note that has arrived
  std::uint64_t calls = 0;
  CallHeader header{};
  std::array<char, 1024> text{};

  static MpiNote gave_up(std::string_view reason);  ///< cut off if it is very long
  std::string reason() const { return {text.data(), strnlen(text.data(), text.size())}; }
};
static_assert(std::is_trivially_copyable_v<MpiNote>);

/// Sends a note to all other ranks of `comm`, without waiting for them. Best effort.
void tell_all(MPI_Comm comm, const MpiNote& note) noexcept;

/// The next note that has arrived, if any. Best effort.
std::optional<MpiNote> next_note(MPI_Comm comm) noexcept;

}  // namespace lockstep::dist
