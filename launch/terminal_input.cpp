#include "lockstep/launch/terminal_input.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace lockstep::launch {

using dist::Descriptor;

Descriptor TerminalInput::open() {
  if (::fcntl(STDIN_FILENO, F_GETFD) < 0) return {};
  if (!::isatty(STDIN_FILENO))
    return Descriptor(dist::checked(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3), "pass on stdin"));
  auto [read_end, write_end] = dist::make_pipe();
  ::fcntl(write_end.get(), F_SETFL, O_NONBLOCK);
  rank_ = std::move(write_end);
  return std::move(read_end);
}

// Reading in the background would stop the launcher. A terminal that is not its own says nothing.
bool TerminalInput::may_read() const {
  const pid_t foreground = ::tcgetpgrp(STDIN_FILENO);
  return foreground < 0 || foreground == ::getpgrp();
}

void TerminalInput::add_sources(std::vector<pollfd>& sources) const {
  if (!rank_) return;
  if (!waiting_.empty())
    sources.push_back({rank_.get(), POLLOUT, 0});
  else if (may_read())
    sources.push_back({STDIN_FILENO, POLLIN, 0});
}

void TerminalInput::pass_on() {
  pollfd typed{STDIN_FILENO, POLLIN, 0};
  if (rank_ && waiting_.empty() && may_read() && ::poll(&typed, 1, 0) == 1) {
    char buffer[4096];
    const ssize_t got = TEMP_FAILURE_RETRY(::read(STDIN_FILENO, buffer, sizeof buffer));
    if (got <= 0) return rank_.close();  // Ctrl-D, or the terminal is gone
    waiting_.assign(buffer, static_cast<std::size_t>(got));
  }
  while (rank_ && !waiting_.empty()) {
    const ssize_t written =
        TEMP_FAILURE_RETRY(::write(rank_.get(), waiting_.data(), waiting_.size()));
    if (written < 0 && errno == EAGAIN) return;
    if (written < 0) {  // no process reads any more
      waiting_.clear();
      return rank_.close();
    }
    waiting_.erase(0, static_cast<std::size_t>(written));
  }
}

}  // namespace lockstep::launch
