#pragma once
/// Errors of a step that all ranks know, and errors that one rank has to tell the others.

#include <optional>
#include <string>

#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::dist {

/// Why all ranks stop, and whom an error blames for it.
struct Problem {
  std::string text{};
  Blame blame{};
};

/// All ranks have read the same metadata: every rank calls this, with the same message. No rank
/// throws (StateError) before all ranks have read it. `blame`: Error::blame.
[[noreturn]] void stop_all_ranks(Communicator& communicator, const std::string& message,
                                 const Blame& blame = {});

/// Call it in a catch block. The first line of the exception's message; nothing if stop_all_ranks
/// has thrown it, because then the other ranks have the same error.
std::optional<std::string> news_for_others();

}  // namespace lockstep::dist
