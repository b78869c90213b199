#pragma once
/// How a program ends when something fails: one clear line and an exit code.
///
///   int main(int argc, char** argv) { return lockstep::run_main([&] { ...; return 0; }); }
///
/// Started alone, a program prints `error: <message>` to stderr. Started by a launcher of ours, it
/// hands the message to the launcher instead, which prints one message for all ranks: the first
/// cause (dist/rendezvous/events/failure_record.h). From World::join on, an error is reported so
/// without run_main, too. What run_main adds: errors before World::join; destructors run, so that
/// files are closed; stdout is checked.
///
/// Thread-safety: call run_main from the main thread.

#include <functional>

namespace lockstep {

/// Thrown by a program that has reported its failure itself. It ends with `code` (not 0), and
/// neither run_main nor a launcher of ours prints anything more. It is not an Error, so that no
/// handler of Errors takes it.
struct AlreadyReported {
  int code = 1;
};

/// Runs `body` and returns its result; after an exception, 2 for UsageError and 1 for any other.
/// Output that could not be written to stdout (a full disk, a closed descriptor) is a failure too.
/// A write beyond `ulimit -f` fails with an error, instead of ending the process (SIGXFSZ).
/// Standard descriptors that the program was started without are opened on /dev/null. Otherwise a
/// file or socket would get their numbers, and with them what is printed.
int run_main(const std::function<int()>& body);

}  // namespace lockstep
