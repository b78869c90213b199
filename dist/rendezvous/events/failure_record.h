#pragma once
/// How a rank says why it failed, in one place for all: run_main (launch/report.h), and what
/// World::join does about an uncaught error.
///
///   ranks of a launcher of ours   an event (rank_event.h); the launcher prints one line for the
///                                 whole job, the first cause
///   others                        `error: ...`, one line to stderr
///
/// Thread-safety: the functions may be called by any thread.

#include <string_view>

#include "lockstep/dist/rendezvous/events/rank_event.h"

namespace lockstep::dist {

struct Failure {
  FailureRecord record;
  int exit_code = 1;  ///< 2 for UsageError
};

/// To be called in a catch block: what the exception says.
Failure current_failure();

/// Tells the launcher, or stderr if there is none. An empty message is not printed. stdout is not
/// flushed: do it before, so that what was printed before the error comes before it.
void report_failure(const FailureRecord& record);

/// An uncaught exception, also in another thread or a `noexcept` function, is reported like one
/// that run_main catches: from now on std::terminate reports it and ends the process with its exit
/// code, without a core dump. A terminate handler that the program has set is called after the
/// report; std::set_terminate(std::abort) is one that dumps core. A child that was forked is no
/// rank: it ends as if this had not been called, unless it calls this itself.
void report_uncaught_errors();

/// Writes all of `text`, and waits where the descriptor is non-blocking and full. Returns 0, or the
/// errno that says why the rest was dropped.
int write_all(int descriptor, std::string_view text);

}  // namespace lockstep::dist
