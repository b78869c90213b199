#include "lockstep/launch/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/left_replicas.h"

namespace lockstep {
namespace launch {
namespace {

constexpr std::string_view cause_word = "cause ", consequence_word = "consequence ";
constexpr std::size_t longest_message = PIPE_BUF - 64;

// One line of printable text: a message may quote a file name with anything in it.
std::string one_line(std::string_view text) {
  std::string line(text.substr(0, longest_message));
  for (char& c : line)
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
  return line;
}

}  // namespace

std::string write_record(const FailureRecord& record) {
  return fmt::format("{}{}\n", record.consequence ? consequence_word : cause_word,
                     one_line(record.message));
}

std::optional<FailureRecord> read_record(std::string_view line) {
  for (std::string_view word : {cause_word, consequence_word})
    if (line.starts_with(word))
      return FailureRecord{word == consequence_word, one_line(line.substr(word.size()))};
  return std::nullopt;
}

int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = TEMP_FAILURE_RETRY(write(descriptor, text.data(), text.size()));
    if (written > 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (written < 0 && errno == EAGAIN) {
      pollfd entry{descriptor, POLLOUT, 0};  // a process that shares it has made it non-blocking
      poll(&entry, 1, -1);
    } else {
      return written < 0 ? errno : EIO;
    }
  }
  return 0;
}

}  // namespace launch

namespace {

int fail_with(int code, bool consequence, std::string_view message) {
  std::fflush(stdout);  // what was printed before the error comes before it
  const std::string line = launch::write_record({consequence, std::string(message)});
  if (const std::optional<int> pipe = dist::launcher_pipe())
    if (write(*pipe, line.data(), line.size()) == std::ssize(line)) return code;
  if (!message.empty())  // not by fmt::print, which throws where stderr cannot be written
    launch::write_all(STDERR_FILENO, fmt::format("error: {}\n", launch::one_line(message)));
  return code;
}

// Gives every standard descriptor that is closed to /dev/null. True if stdout was one of them.
bool open_standard_descriptors() {
  bool no_stdout = false;
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(number, F_GETFD) >= 0) continue;
    no_stdout |= number == STDOUT_FILENO;
    // open() takes the lowest free number, and those below are taken. Without a /dev/null, go on.
    [[maybe_unused]] const int opened = open("/dev/null", O_RDWR);
  }
  return no_stdout;
}

// The reason of an earlier failure is not known any more: errno is that of a later call.
void check_stdout() {
  const bool failed_before = std::ferror(stdout) != 0;
  const int reason = std::fflush(stdout) == 0 ? 0 : errno;
  check<Error>(reason == 0, "cannot write to stdout: {}", std::strerror(reason));
  check<Error>(!failed_before, "cannot write to stdout: a part of the output is lost");
}

}  // namespace

int run_main(const std::function<int()>& body) {
  const bool no_stdout = open_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    int code = 0;
    bool reported = false;  // by the program itself; counts only if stdout could be written
    try {
      code = body();
    } catch (const AlreadyReported& failure) {
      code = failure.code;
      reported = true;
    }
    check_stdout();
    check<Error>(!no_stdout || code != 0, "cannot write to stdout: it is closed");
    return reported ? fail_with(code, false, "") : code;
  } catch (const UsageError& error) {
    return fail_with(2, false, error.what());
  } catch (const PeerError& error) {
    return fail_with(1, true, error.what());
  } catch (...) {
    return fail_with(1, false, current_message());
  }
}

}  // namespace lockstep
