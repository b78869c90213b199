#pragma once
/// How a program ends when something fails: one clear line and an exit code.
///
///   int main(int argc, char** argv) { return lockstep::run_main([&] { ...; return 0; }); }
///
/// Started alone, a program prints `error: <message>` to stderr. Started by a launcher of ours, it
/// hands the message to the launcher instead (a record in the pipe LOCKSTEP_ERROR_FD). The launcher
/// prints one message for all ranks: the first cause.
///
/// Thread-safety: call run_main from the main thread; the other functions may be called by any.

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// Thrown by a program that has reported its failure itself. It ends with `code` (not 0), and
/// neither run_main nor a launcher of ours prints anything more. It is not an Error, so that no
/// handler of those takes it.
struct AlreadyReported {
  int code = 1;
};

/// Runs `body` and returns its result; after an exception, 2 for UsageError and 1 for any other.
/// Output that could not be written to stdout (a full disk, a closed descriptor) is a failure too.
/// A write beyond `ulimit -f` fails with an error, instead of ending the process (SIGXFSZ).
/// Standard descriptors that the program was started without are opened on /dev/null. Otherwise a
/// file or socket would get their numbers, and with them what is printed.
int run_main(const std::function<int()>& body);

namespace launch {

/// Why a rank failed.
struct FailureRecord {
  bool consequence = false;  ///< of another rank's failure (PeerError): not the cause
  std::string message;       ///< one line; empty if the rank has reported it (AlreadyReported)
};

/// The record as one line: `cause <message>` or `consequence <message>`. Newlines and control
/// characters are replaced. It is cut so that a single write to a pipe is atomic (PIPE_BUF,
/// pipe(7)).
std::string write_record(const FailureRecord& record);

/// The reverse, for a line without its newline; nothing if the line is not a record.
std::optional<FailureRecord> read_record(std::string_view line);

/// Writes all of `text`, and waits where the descriptor is non-blocking and full. Returns 0, or the
/// errno that says why the rest was dropped.
int write_all(int descriptor, std::string_view text);

}  // namespace launch
}  // namespace lockstep
