#include "lockstep/dist/rendezvous/events/launcher_pipe.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "lockstep/dist/rendezvous/surroundings/inherited.h"
#include "lockstep/dist/rendezvous/surroundings/nearest.h"

namespace lockstep::dist {

namespace {

struct KnownPipe {
  int descriptor;
  dev_t device;
  ino_t inode;
};

std::optional<KnownPipe> pipe_at(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0 || !S_ISFIFO(status.st_mode)) return std::nullopt;
  return KnownPipe{descriptor, status.st_dev, status.st_ino};
}

std::optional<KnownPipe> pipe_of_environment() {
  const Getenv get = nearest_launcher([](const char* name) { return std::getenv(name); });
  const std::optional<int> number = inherited(get, "LOCKSTEP_ERROR_FD");
  return number ? pipe_at(*number) : std::nullopt;
}

std::mutex pipe_mutex;
std::optional<std::optional<KnownPipe>> remembered_pipe;  // that there is none, too

}  // namespace

void remember_launcher_pipe() {
  const std::lock_guard lock(pipe_mutex);
  remembered_pipe = pipe_of_environment();
}

std::optional<int> launcher_pipe() {
  const std::lock_guard lock(pipe_mutex);
  const std::optional<KnownPipe> pipe = remembered_pipe ? *remembered_pipe : pipe_of_environment();
  const std::optional<KnownPipe> now = pipe ? pipe_at(pipe->descriptor) : std::nullopt;
  if (!now || now->device != pipe->device || now->inode != pipe->inode) return std::nullopt;
  return pipe->descriptor;
}

namespace {

// Whether a line fits into the pipe: its reader may be stopped, and a pipe holds little.
bool takes_more(int pipe) {
  int unread = 0;
  return ::ioctl(pipe, FIONREAD, &unread) == 0 && unread < 2048;
}

}  // namespace

bool tell_launcher(const RankEvent& event) noexcept {
  try {
    const std::optional<int> pipe = launcher_pipe();
    if (!pipe || (event.kind == RankEvent::Kind::works && !takes_more(*pipe))) return false;
    const std::string line = event.text();
    return TEMP_FAILURE_RETRY(::write(*pipe, line.data(), line.size())) == std::ssize(line);
  } catch (...) {  // out of memory: the launcher knows less of this rank
    return false;
  }
}

}  // namespace lockstep::dist
