#pragma once
/// The pipe from a rank to its launcher, LOCKSTEP_ERROR_FD: one line for each event.
///
/// Thread-safety: the functions may be called by any thread.

#include <optional>

#include "lockstep/dist/rendezvous/events/rank_event.h"

namespace lockstep::dist {

/// A rank joins: from now on its launcher's pipe is the descriptor that LOCKSTEP_ERROR_FD names
/// now. Later changes of the environment do not matter.
void remember_launcher_pipe();
/// The launcher's pipe, if there is one and the descriptor still is that pipe.
std::optional<int> launcher_pipe();

/// Tells the launcher. False if there is none, or it cannot be told: best effort. `works` is
/// dropped where the launcher reads nothing: a thread tells it that must not wait.
bool tell_launcher(const RankEvent& event) noexcept;

}  // namespace lockstep::dist
