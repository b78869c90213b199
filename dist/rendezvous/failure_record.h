#pragma once
/// How a rank says why it failed, in one place for all: run_main (launch/report.h), and what
/// World::join does about an error that nobody catches.
///
///   ranks of a launcher of ours   a record in the pipe LOCKSTEP_ERROR_FD; the launcher prints one
///                                 line for the whole job, the first cause
///   others                        `error: ...`, one line to stderr
///
/// Thread-safety: the functions may be called by any thread.

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::dist {

/// Why a rank failed.
struct FailureRecord {
  bool consequence = false;  ///< of another rank's failure (PeerError): not the cause
  std::string message{};     ///< one line; empty if the rank has reported it (AlreadyReported)
  std::string culprit{};     ///< "rank 1 hangs" (Error::culprit); empty: this rank, or not known

  /// For people: the culprit first.
  std::string text() const { return culprit.empty() ? message : culprit + ": " + message; }
};

/// The record as one line: `cause <message>`, `consequence <message>`, or with a culprit, a tab and
/// the message behind that word. Newlines and control characters are written as
/// "\n" and "\x1b" (visible()). It is cut so that a
/// single write to a pipe is atomic (PIPE_BUF, pipe(7)).
std::string write_record(const FailureRecord& record);

/// The reverse, for a line without its newline; nothing if the line is not a record.
std::optional<FailureRecord> read_record(std::string_view line);

struct Failure {
  FailureRecord record;
  int exit_code = 1;  ///< 2 for UsageError
};

/// To be called in a catch block: what the exception says.
Failure current_failure();

/// Tells the launcher, or stderr if there is none. An empty message is not printed. stdout is not
/// flushed: do it before, so that what was printed before the error comes before it.
void report_failure(const FailureRecord& record);

/// An exception that nobody catches, also in another thread or a `noexcept` function, is reported
/// like one that run_main catches: from now on std::terminate reports it and ends the process with
/// its exit code, without a core dump. A terminate handler of the program's own is called after the
/// report; std::set_terminate(std::abort) is one that dumps core. A child that was forked is no
/// rank: it ends as if this had not been called, unless it calls this itself.
void report_uncaught_errors();

/// Writes all of `text`, and waits where the descriptor is non-blocking and full. Returns 0, or the
/// errno that says why the rest was dropped.
int write_all(int descriptor, std::string_view text);

}  // namespace lockstep::dist
