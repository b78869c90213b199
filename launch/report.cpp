#include "lockstep/launch/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "lockstep/core/error.h"
#include "lockstep/launch/output.h"

namespace lockstep {
namespace dist {
namespace {

constexpr std::string_view cause_word = "cause ", echo_word = "echo ";
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
  return fmt::format("{}{}\n", record.echo ? echo_word : cause_word, one_line(record.message));
}

std::optional<FailureRecord> read_record(std::string_view line) {
  for (std::string_view word : {cause_word, echo_word})
    if (line.starts_with(word))
      return FailureRecord{word == echo_word, one_line(line.substr(word.size()))};
  return std::nullopt;
}

}  // namespace dist

namespace {

// The launcher's pipe, if there is one and the descriptor is still what the launcher made it.
std::optional<int> launcher_pipe() {
  const char* text = std::getenv("LOCKSTEP_ERROR_FD");
  if (!text) return std::nullopt;
  int number = -1;
  const char* end = text + std::strlen(text);
  if (auto [stop, error] = std::from_chars(text, end, number); error != std::errc{} || stop != end)
    return std::nullopt;
  struct stat status {};
  if (fstat(number, &status) != 0 || !S_ISFIFO(status.st_mode)) return std::nullopt;
  return number;
}

void report(const dist::FailureRecord& record) {
  const std::string line = dist::write_record(record);
  if (std::optional<int> pipe = launcher_pipe())
    if (write(*pipe, line.data(), line.size()) == static_cast<ssize_t>(line.size())) return;
  if (record.message.empty()) return;
  const std::string message = dist::read_record({line.data(), line.size() - 1})->message;
  // Not fmt::print, which throws where stderr cannot be written.
  dist::write_all(STDERR_FILENO, fmt::format("error: {}\n", message));
}

int fail_with(int code, bool echo, const char* message) {
  std::fflush(stdout);  // what was said before the error comes before it
  report({echo, message});
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

}  // namespace

int run_main(const std::function<int()>& body) {
  const bool no_stdout = open_standard_descriptors();
  try {
    int code = 0;
    bool reported = false;  // by the program itself; heard only if stdout could be written
    try {
      code = body();
    } catch (const AlreadyReported& failure) {
      code = failure.code;
      reported = true;
    }
    if (std::fflush(stdout) != 0 || std::ferror(stdout))
      fail<Error>("cannot write to stdout: {}", std::strerror(errno));
    check<Error>(!no_stdout || code != 0, "cannot write to stdout: it is closed");
    return reported ? fail_with(code, false, "") : code;
  } catch (const UsageError& error) {
    return fail_with(2, false, error.what());
  } catch (const PeerError& error) {
    return fail_with(1, true, error.what());
  } catch (const std::bad_alloc&) {
    return fail_with(1, false, "out of memory");
  } catch (const std::exception& error) {
    return fail_with(1, false, error.what());
  }
}

}  // namespace lockstep
