#include "lockstep/dist/rendezvous/events/failure_record.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/events/launcher_pipe.h"

namespace lockstep::dist {
namespace {

constexpr std::size_t longest_on_stderr = 4096;  // of an error on stderr

// What was printed before the error comes before it, unless another thread is writing.
void flush_stdout() {
  if (ftrylockfile(stdout) != 0) return;
  std::fflush(stdout);
  funlockfile(stdout);
}

std::atomic<pid_t> rank_process{0};  // the last that report_uncaught_errors() was called in
std::terminate_handler handler_before = nullptr;

// libstdc++'s own handler prints and aborts. Whatever else was set is the program's.
bool programs_own(std::terminate_handler handler) {
  return handler && handler != __gnu_cxx::__verbose_terminate_handler;
}

Failure uncaught_failure() {
  if (!std::current_exception())
    return {{.message = "std::terminate without an exception: was a std::thread destroyed that had "
                        "not been joined?"}};
  try {
    throw;
  } catch (...) {
    return current_failure();
  }
}

[[noreturn]] void terminate_rank() noexcept {
  if (::getpid() != rank_process) {
    handler_before ? handler_before() : std::abort();
    std::abort();
  }
  static std::atomic<bool> first{true};
  static thread_local int exit_code = 0;   // of the thread that ends the process
  if (exit_code != 0) ::_exit(exit_code);  // the report, or the program's handler, has failed
  if (!first.exchange(false))
    for (;;) ::pause();  // another thread is ending the process
  exit_code = 1;
  try {
    const Failure failure = uncaught_failure();
    exit_code = failure.exit_code;
    flush_stdout();
    report_failure(failure.record);
  } catch (...) {  // out of memory
    constexpr std::string_view text = "error: out of memory, while an error was reported\n";
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  }
  if (programs_own(handler_before)) handler_before();
  ::_exit(exit_code);
}

}  // namespace

Failure current_failure() {
  Failure failure{{.message = current_message()}};
  try {
    throw;
  } catch (const Error& error) {
    if (error.blame) failure.record.blame = *error.blame;
    failure.record.consequence = dynamic_cast<const PeerError*>(&error) != nullptr;
    if (dynamic_cast<const UsageError*>(&error)) failure.exit_code = 2;
  } catch (...) {  // its message is all that is known
  }
  return failure;
}

void report_failure(const FailureRecord& record) {
  if (tell_launcher({.kind = RankEvent::Kind::failed, .failure = record})) return;
  if (!record.message.empty())  // not by fmt::print, which throws where stderr cannot be written
    write_all(STDERR_FILENO,
              fmt::format("error: {}\n", one_line(record.text(), longest_on_stderr)));
}

void report_uncaught_errors() {
  rank_process = ::getpid();
  [[maybe_unused]] static const bool once = [] {
    handler_before = std::set_terminate(terminate_rank);
    return true;
  }();
}

int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = TEMP_FAILURE_RETRY(::write(descriptor, text.data(), text.size()));
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      pollfd entry{descriptor, POLLOUT, 0};  // a process that shares it has made it non-blocking
      ::poll(&entry, 1, -1);
    } else {
      return written < 0 ? errno : EIO;
    }
  }
  return 0;
}

}  // namespace lockstep::dist
