#pragma once
/// What World::join and survive() do in a job that survives. May be called by any thread.

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/survival/generation.h"

namespace lockstep::dist {

/// The newest generation, once this rank is in it: one that was started later asks to be let in.
/// Throws CommError if that takes a minute.
Generation generation_with(int descriptor, int rank);

/// Waits until the launcher has published a generation `after` this one, for five seconds at most.
/// Returns the newest.
int await_generation(int descriptor, int after);

/// If `error` blames a rank of this generation, tells the launcher. Ranks have the numbers of this
/// world; `own` is the one that says so.
void suspect_blamed(const CommError& error, const Generation& generation, int own);

}  // namespace lockstep::dist
