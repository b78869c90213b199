#include "lockstep/launch/output.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::dist {

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {  // somebody who shares it has made it non-blocking
      pollfd entry{descriptor, POLLOUT, 0};
      poll(&entry, 1, -1);
      continue;
    }
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace lockstep::dist
