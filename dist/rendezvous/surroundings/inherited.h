#pragma once
/// Descriptors that a launcher of ours leaves open in its ranks: LOCKSTEP_TOKEN_FD and the like
/// have their numbers. What is started between launcher and program may close them (Python's
/// subprocess), or use their numbers for other files (`exec 4>log` in a shell). Therefore the
/// numbers are high, and LOCKSTEP_DESCRIPTORS tells what each is: "512:14:8123 513:15:77",
/// number:device:inode.
///
/// Thread-safety: may be called by any thread while no thread changes the environment.

#include <optional>
#include <span>
#include <string>

#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::dist {

/// The same under a number that scripts do not use: from 512 on, or half of what `ulimit -n`
/// allows. Closed on exec. Throws Error if the process has no such number left.
Descriptor moved_up(Descriptor low);

/// LOCKSTEP_DESCRIPTORS for these.
std::string identities_of(std::span<const int> descriptors);

/// The descriptor that variable `name` says; nothing if the variable is not set to a number, or if
/// the launcher has left something else open there.
std::optional<int> inherited(const Getenv& get, const char* name);

/// Throws UsageError if one of the launcher's descriptors is closed, or is something else. It says
/// what to do.
void check_inherited(const Getenv& get);

/// From now on the programs that this rank starts do not get them: those are no ranks.
void keep_from_children(const Getenv& get);

}  // namespace lockstep::dist
