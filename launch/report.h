#pragma once
/// How a program ends when something fails: one clear line and an exit code.
///
///   int main(int argc, char** argv) { return lockstep::run_main([&] { ...; return 0; }); }
///
/// Started alone, a program prints `error: <message>` to stderr. Started by a launcher of ours, it
/// hands the message to the launcher instead (a record in the pipe LOCKSTEP_ERROR_FD), which prints
/// one message for all ranks: the first cause.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// Thrown by a program that has said itself why it fails: it ends with `code` (not 0), and neither
/// run_main nor a launcher of ours adds a word. Not an Error: no handler of those should take it.
struct AlreadyReported {
  int code = 1;
};

/// Runs `body` and returns its result; after an exception, 2 for UsageError and 1 for any other.
/// Output that could not be written to stdout (a full disk, a closed descriptor) is a failure too.
/// Standard descriptors that the program was started without are opened on /dev/null, so that no
/// file or socket takes their numbers, and with them what is printed.
int run_main(const std::function<int()>& body);

namespace dist {

/// Why a rank failed. An echo is a failure that only follows from another rank's (PeerError).
struct FailureRecord {
  bool echo = false;
  std::string message;  ///< one line; empty if the rank has said it itself (AlreadyReported)
};

/// The record as one line: `cause <message>` or `echo <message>`, newlines and control characters
/// replaced, cut so that a single write to a pipe is atomic (PIPE_BUF, pipe(7)).
std::string write_record(const FailureRecord& record);

/// The reverse, for a line without its newline; nothing if the line is not a record.
std::optional<FailureRecord> read_record(std::string_view line);

}  // namespace dist
}  // namespace lockstep
